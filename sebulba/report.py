"""Write a page about runs: `python -m sebulba.report RUN_DIR... [-o FILE]`."""

import argparse
import pathlib
import sys

from sebulba.process import program, run_command
from sebulba.tools.report.command import report


def main() -> None:
    """Write the page, print the file, and exit with 0, or 2 if there is nothing to report."""
    parser = argparse.ArgumentParser(
        prog=program("report"),
        description=(
            "Writes one self-contained HTML page about runs: config, machine, curves, speed, the"
            " bottleneck and what to change, evaluations, videos, and the command to resume."
        ),
    )
    parser.add_argument(
        "run_dirs", nargs="+", metavar="RUN_DIR", help="run directory, or a directory of several"
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="file to write or overwrite; default: report.html in the first RUN_DIR",
    )
    arguments = parser.parse_args()
    output = arguments.output or str(pathlib.Path(arguments.run_dirs[0]) / "report.html")
    sys.exit(report(arguments.run_dirs, output))


if __name__ == "__main__":
    run_command(main)
