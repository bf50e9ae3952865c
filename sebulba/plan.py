"""Plan a run: `python -m sebulba.plan CONFIG [--seconds S] [--verify] [--section.field ...]`."""

import argparse
import pathlib
import sys

from sebulba.config import flags
from sebulba.process import program, run_command

_PROG = program("plan")
_DESCRIPTION = """\
Measures acting, environment, transfer and update of a config on this machine, predicts the speed of
other settings from these times, and prints the flags of the fastest: actor threads, environments,
queue slots, and which devices act and learn.

--seconds S   time to measure each part, in seconds, compilation excluded (default: 1)
--verify      run the given and the proposed settings, and compare with the prediction
--json FILE   also write times, predictions and measured speeds to this file, as JSON"""


def main() -> None:
    """Parse the command line, measure, and exit with 0, or 2 for a wrong config."""
    parser = argparse.ArgumentParser(prog=f"{_PROG} CONFIG", add_help=False, allow_abbrev=False)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--verify", action="store_true")
    parser.add_argument("--json", type=pathlib.Path)
    options, argv = parser.parse_known_args()
    config = flags.parse(argv, _PROG, _DESCRIPTION)
    # Importing jax takes a second, so command line errors and --help come first.
    from sebulba.tools.plan.command import plan

    sys.exit(plan(config, seconds=options.seconds, verify=options.verify, json_path=options.json))


if __name__ == "__main__":
    run_command(main)
