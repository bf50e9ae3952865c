"""Checks an agent and its environment: `python -m sebulba.check CONFIG [--json FILE] [--flags]`.

Exits with 0 if there is nothing wrong, with 3 if there is, and with 2 for a wrong config.
"""

import pathlib
import sys

from sebulba.config import flags
from sebulba.exit_codes import EXIT_CONFIG

_DESCRIPTION = (
    "Proves the agent and the environment of a config right together, through the real pipeline.\n"
    "--json FILE writes the results as JSON too."
)


def main() -> None:
    """Parses the command line, checks, and exits with 0, 2 or 3."""
    argv, json_path = _take_json(sys.argv[1:])
    config = flags.parse(argv, "python -m sebulba.check", _DESCRIPTION)
    # Not before the command line is known to be right: importing jax takes a second.
    from sebulba.tools.check.command import run_check

    sys.exit(run_check(config, json_path))


def _take_json(argv: list[str]) -> tuple[list[str], pathlib.Path | None]:
    """Returns the command line without `--json FILE`, and FILE."""
    rest, path = [], None
    arguments = iter(argv)
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if name != "--json":
            rest.append(argument)
            continue
        path = value if equals else next(arguments, "")
        if not path:
            print("--json: expected a file, got nothing", file=sys.stderr)
            sys.exit(EXIT_CONFIG)
    return rest, None if path is None else pathlib.Path(path)


if __name__ == "__main__":
    main()
