"""Writes a page about runs: `python -m sebulba.report RUN_DIR... [-o FILE]`."""

import argparse
import pathlib
import sys

from sebulba.errors import ConfigError
from sebulba.exit_codes import EXIT_CONFIG
from sebulba.tools.report.groups import group_runs
from sebulba.tools.report.matplotlib_extra import require_matplotlib
from sebulba.tools.report.runs import read_runs


def main() -> None:
    """Writes the page, prints where, and exits with 0, or 2 if there is nothing to tell of."""
    parser = argparse.ArgumentParser(
        prog="python -m sebulba.report",
        description=(
            "Writes one self-contained HTML page: what ran, on what, curves, speed, what bound it "
            "and what to change, evaluation, video, and how to go on."
        ),
    )
    parser.add_argument(
        "run_dirs",
        nargs="+",
        metavar="RUN_DIR",
        help="a run's directory, or one that holds several",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="written over; default: report.html in the first RUN_DIR",
    )
    arguments = parser.parse_args()
    output = arguments.output or str(pathlib.Path(arguments.run_dirs[0]) / "report.html")
    try:
        require_matplotlib()
        groups = group_runs(read_runs(arguments.run_dirs))
        # Not before it is known that matplotlib is there, and needed.
        from sebulba.tools.report.page import page

        pathlib.Path(output).write_text(page(groups), encoding="utf-8")
    except (ConfigError, OSError) as error:
        print(f"sebulba.report: {error}", file=sys.stderr)
        sys.exit(EXIT_CONFIG)
    print(output)


if __name__ == "__main__":
    main()
