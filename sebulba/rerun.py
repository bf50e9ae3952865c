"""Takes the update that ended a run again, alone: `python -m sebulba.rerun RUN_DIR`.

For runs that ended because a loss or gradients were not finite. Nothing of the run is changed.
"""

import argparse
import pathlib
import sys


def main() -> None:
    """Parses the command line, takes the update, and exits with 0 if it is finite now, else 6."""
    parser = argparse.ArgumentParser(
        prog="python -m sebulba.rerun",
        description=(
            "Takes the update that ended a run, not being finite, again from the checkpoint of the"
            " state that it saw, and shows which inputs, metrics and gradients are not finite."
        ),
    )
    parser.add_argument("run_dir", type=pathlib.Path, metavar="RUN_DIR")
    options = parser.parse_args()
    # Not before the command line is known to be right: importing jax takes a second.
    from sebulba.tools.rerun import rerun

    sys.exit(rerun(options.run_dir))


if __name__ == "__main__":
    main()
