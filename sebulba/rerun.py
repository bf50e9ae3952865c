"""Rerun a part of a run to look at it: `python -m sebulba.rerun RUN_DIR [--to-cycle N ...]`.

The run directory is not changed.
"""

import argparse
import pathlib
import sys

from sebulba.process import program, run_command

_DESCRIPTION = """\
Without --to-cycle: reruns the non-finite update that ended a run with exit code 6, from the
checkpoint before it, and lists the inputs, metrics and gradients with NaN or infinite elements.

With --to-cycle N: repeats a run that has a learner.policy_lag up to learner cycle N, in one thread,
from the nearest checkpoint or from the start, and shows the batch that the cycle takes."""


def main() -> None:
    """Parse the command line, rerun, and exit with 0, or 6 if the update is not finite."""
    parser = argparse.ArgumentParser(
        prog=program("rerun"),
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run_dir", type=pathlib.Path, metavar="RUN_DIR", help="run to repeat")
    parser.add_argument("--to-cycle", type=_cycle, metavar="N", help="learner cycle, from 0")
    parser.add_argument(
        "--dump", type=pathlib.Path, metavar="FILE", help="with --to-cycle: write the batch (.npz)"
    )
    parser.add_argument(
        "--debug", action="store_true", help="with --to-cycle: stop in Python's debugger there"
    )
    options = parser.parse_args()
    if options.to_cycle is None and (options.dump is not None or options.debug):
        parser.error("--dump and --debug: expected --to-cycle N")
    # Importing jax takes a second, so command line errors and --help come first.
    if options.to_cycle is None:
        from sebulba.tools.rerun import rerun

        sys.exit(rerun(options.run_dir))
    from sebulba.tools.rerun_cycle import rerun_to_cycle

    sys.exit(
        rerun_to_cycle(options.run_dir, options.to_cycle, dump=options.dump, debug=options.debug)
    )


def _cycle(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a learner cycle from 0, got {text}")
    return int(text)


if __name__ == "__main__":
    run_command(main)
