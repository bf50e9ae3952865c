"""Train with several settings and seeds: `python -m sebulba.sweep CONFIG --FLAG A,B --seeds 0..2`.

One process for each run; the results are compared in a table and a plot.
"""

import sys
from collections.abc import Sequence

from sebulba.config import flags
from sebulba.process import program, run_command
from sebulba.tools.sweep.command import sweep

_USAGE = f"usage: {program('sweep')} CONFIG [--section.field VALUE,VALUE ...] [--seeds 0..2]"
_DESCRIPTION = """\
Trains a config with every combination of the values that flags list, each with every seed. Prints
the interquartile mean of the final returns over seeds with its 95 % bootstrap interval, and writes
sweep.json and, with the extra `plot`, sweep.png. Start the same command again to resume.

--section.field A,B   values of a setting; commas inside of brackets or quotes separate none
--seeds 0..2          seeds of each combination, or a list: 0,3,7; default: the config's seed
--run-dir DIRECTORY   holds a directory for each run; default: runs/sweep-<config>
--jobs N              number of runs at a time; default: 1
--list                print the runs with their numbers, and train nothing

As a task of a Slurm array, trains the run with the number of the task; the last task that ends
writes the results."""


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the command line, train, report, and exit with the first exit code other than 0."""
    argv = sys.argv[1:] if argv is None else argv
    if any(argument in ("-h", "--help") for argument in argv):
        config = [argument for argument in argv[:1] if not argument.startswith("-")]
        flags.parse([*config, "--help"], program("sweep"), _DESCRIPTION)
    sys.exit(sweep(argv, usage=_USAGE))


if __name__ == "__main__":
    run_command(main)
