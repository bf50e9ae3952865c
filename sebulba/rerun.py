"""Rerun the non-finite update that stopped a run: `python -m sebulba.rerun RUN_DIR`.

For runs that ended with exit code 6. The run directory is not changed.
"""

import argparse
import pathlib
import sys


def main() -> None:
    """Parse the command line, rerun the update, and exit with 0 if it is finite now, else 6."""
    parser = argparse.ArgumentParser(
        prog="python -m sebulba.rerun",
        description=(
            "Reruns the non-finite update that stopped a run, from the checkpoint before it, and"
            " lists the inputs, metrics and gradients with NaN or infinite elements."
        ),
    )
    parser.add_argument(
        "run_dir", type=pathlib.Path, metavar="RUN_DIR", help="run that ended with exit code 6"
    )
    options = parser.parse_args()
    # Importing jax takes a second, so command line errors and --help come first.
    from sebulba.tools.rerun import rerun

    sys.exit(rerun(options.run_dir))


if __name__ == "__main__":
    main()
