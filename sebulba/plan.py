"""Plans a run: `python -m sebulba.plan CONFIG [--seconds S] [--verify] [--section.field ...]`."""

import argparse
import pathlib
import sys

from sebulba.config import flags

_DESCRIPTION = """\
Measures the parts of a config for a few seconds on this machine's devices, and proposes threads,
environments, queue length and device split with the speed that they should give.

--seconds S   to measure each part, compilation not counted (default: 1)
--verify      run what is given and what is proposed, and compare them with the prediction
--json FILE   write everything as JSON too"""


def main() -> None:
    """Parses the command line, measures, and exits with 0, or 2 for a wrong config."""
    options = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    options.add_argument("--seconds", type=float, default=1.0)
    options.add_argument("--verify", action="store_true")
    options.add_argument("--json", type=pathlib.Path)
    chosen, argv = options.parse_known_args()
    config = flags.parse(argv, "python -m sebulba.plan", _DESCRIPTION)
    # Not before the command line is known to be right: importing jax takes a second.
    from sebulba.tools.plan.command import plan

    sys.exit(plan(config, seconds=chosen.seconds, verify=chosen.verify, json_path=chosen.json))


if __name__ == "__main__":
    main()
