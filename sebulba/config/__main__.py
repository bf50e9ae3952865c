"""Print the configuration reference, `docs/configuration.md`: `python -m sebulba.config`."""

from sebulba.config.reference import reference

if __name__ == "__main__":
    print(reference(), end="")
