"""Trains the agent of a config: `python -m sebulba.train CONFIG [--section.field VALUE ...]`.

With `--seeds 0..4` it trains once with each seed, one run after another.
"""

import sys

from sebulba.config import flags
from sebulba.config.naming import default_run_dir
from sebulba.errors import ConfigError
from sebulba.exit_codes import EXIT_CONFIG
from sebulba.hosts import seeds
from sebulba.hosts.children import end_with_parent
from sebulba.process import leave, open_standard_streams

_PROG = "python -m sebulba.train"
_DESCRIPTION = """\
Trains the agent of a config.

--seeds 0..4 (or 0,3,7) trains once with each seed, one run after another, each in a process of its
own and in RUN_DIR/seed-N."""


def main() -> None:
    """Parses the command line, trains, and exits with the run's code."""
    open_standard_streams()
    end_with_parent()
    try:
        several, argv = seeds.take_seeds(sys.argv[1:])
    except ConfigError as error:
        print(error, file=sys.stderr)
        sys.exit(EXIT_CONFIG)
    if several is not None:
        config = flags.parse([*argv, "--seed", str(max(several))], _PROG, _DESCRIPTION)
        run_dir = config.run_dir or default_run_dir(config)
        sys.exit(seeds.train_seeds(argv, several, run_dir=run_dir))
    config = flags.parse(argv, _PROG, _DESCRIPTION)
    # Not before the command line is known to be right: importing jax takes a second.
    from sebulba.run.lifecycle import train

    leave(train(config))


if __name__ == "__main__":
    main()
