"""Draws runs: `python -m sebulba.plot RUN_DIR... -o FILE`."""

import argparse
import pathlib
import sys

from sebulba.errors import ConfigError
from sebulba.exit_codes import EXIT_CONFIG
from sebulba.tools.report.groups import group_runs
from sebulba.tools.report.matplotlib_extra import require_matplotlib
from sebulba.tools.report.runs import read_runs

FORMATS = (".png", ".svg", ".pdf")


def main() -> None:
    """Draws, and exits with 0, or 2 if there is nothing to draw or nothing to draw with."""
    parser = argparse.ArgumentParser(
        prog="python -m sebulba.plot",
        description=(
            "Draws returns over env steps and wall time, speed, shares of time and policy lag. "
            "Runs that differ in nothing but the seed become one line with a band."
        ),
    )
    parser.add_argument(
        "run_dirs",
        nargs="+",
        metavar="RUN_DIR",
        help="a run's directory, or one that holds several",
    )
    parser.add_argument(
        "-o", "--output", required=True, metavar="FILE", help="a .png, .svg or .pdf, written over"
    )
    arguments = parser.parse_args()
    try:
        check_format(arguments.output)
        require_matplotlib()
        groups = group_runs(read_runs(arguments.run_dirs))
        # Not before it is known to be there, and needed.
        from sebulba.tools.report.figure import draw, save

        save(draw(groups), arguments.output)
    except (ConfigError, OSError) as error:
        print(f"sebulba.plot: {error}", file=sys.stderr)
        sys.exit(EXIT_CONFIG)


def check_format(path: str) -> None:
    """Raises `ConfigError` unless the path ends like a picture."""
    if pathlib.Path(path).suffix not in FORMATS:
        raise ConfigError(f"-o: expected a file that ends in {', '.join(FORMATS)}, got {path}")


if __name__ == "__main__":
    main()
