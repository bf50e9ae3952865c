"""Train an agent, from the command line `CONFIG [--section.field VALUE ...]`.

With `--seeds 0..4`, train once with each seed, one run after another. Imports no jax before `main`.
"""

import os
import pathlib
import sys

from sebulba.config import flags
from sebulba.config.naming import default_run_dir
from sebulba.errors import ConfigError
from sebulba.hosts import seeds
from sebulba.hosts.children import end_with_parent
from sebulba.process import EXIT_CONFIG, EXIT_FAILED, leave, program
from sebulba.storage.lock import refuse_if_in_use

_PROG = program("train")
_DESCRIPTION = """\
Trains the agent of a config.

--seeds 0..4   train with each of these seeds (or a list: 0,3,7), one run after another, each in its
               own process and in RUN_DIR/seed-N"""


def main() -> None:
    """Parse the command line, train, and exit with the run's exit code."""
    end_with_parent()
    try:
        all_seeds, argv = seeds.take_seeds(sys.argv[1:])
    except ConfigError as error:
        print(error, file=sys.stderr)
        sys.exit(EXIT_CONFIG)
    if all_seeds is not None:
        config = flags.parse([*argv, "--seed", str(max(all_seeds))], _PROG, _DESCRIPTION)
        run_dir = config.run_dir or default_run_dir(config)
        sys.exit(seeds.train_seeds(argv, all_seeds, run_dir=run_dir))
    config = flags.parse(argv, _PROG, _DESCRIPTION)
    # Importing jax takes a second, so command line errors and --help come first.
    try:
        # On several hosts the lock may be that of this run's first host.
        if config.run_dir is not None and config.distributed.effective_mode == "off":
            directory = os.path.expandvars(config.run_dir)
            refuse_if_in_use(pathlib.Path(directory).expanduser().absolute())
    except ConfigError as error:
        print(f"sebulba: {error}", file=sys.stderr)
        sys.exit(EXIT_CONFIG)
    try:
        from sebulba.run.lifecycle import train
    except (OSError, MemoryError) as error:  # too few open files are allowed, for example
        print(f"sebulba: {type(error).__name__}: {error} – while importing", file=sys.stderr)
        sys.exit(EXIT_FAILED)

    leave(train(config))
