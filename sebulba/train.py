"""Trains the agent of a config: `python -m sebulba.train CONFIG [--section.field VALUE ...]`."""

import sys

from sebulba.config import flags


def main() -> None:
    """Parses the command line, trains, and exits with the run's code."""
    config = flags.parse(sys.argv[1:], "python -m sebulba.train", "Trains the agent of a config.")
    # Not before the command line is known to be right: importing jax takes a second.
    from sebulba.training import train

    sys.exit(train(config))


if __name__ == "__main__":
    main()
