"""Plot runs: `python -m sebulba.plot RUN_DIR... -o FILE`."""

import argparse
import sys

from sebulba.errors import ConfigError
from sebulba.process import EXIT_CONFIG, program, run_command


def main() -> None:
    """Plot, print the file, and exit with 0, or 2 if there is nothing to plot or no matplotlib."""
    parser = argparse.ArgumentParser(
        prog=program("plot"),
        description=(
            "Plots mean returns over env steps and over wall time, speed, the threads' time by"
            " activity, and policy lag. Runs that differ only in their seed share a line and a"
            " band."
        ),
    )
    parser.add_argument(
        "run_dirs", nargs="+", metavar="RUN_DIR", help="run directory, or a directory of several"
    )
    parser.add_argument(
        "-o",
        "--output",
        required=True,
        metavar="FILE",
        help="file to write or overwrite: .png, .svg or .pdf",
    )
    arguments = parser.parse_args()
    # Importing numpy takes time, so command line errors and --help come first.
    from sebulba.curves import plot_runs

    try:
        plot_runs(arguments.run_dirs, arguments.output)
    except (ConfigError, OSError) as error:
        print(f"sebulba.plot: {error}", file=sys.stderr)
        sys.exit(EXIT_CONFIG)
    print(f"wrote {arguments.output}")


if __name__ == "__main__":
    run_command(main)
