"""Check an agent and its environment: `python -m sebulba.check CONFIG [--section.field VALUE ...]`.

Exits with 0 if every check passes, with 3 if one fails, and with 2 for a wrong config.
"""

import argparse
import pathlib
import sys

from sebulba.config import flags
from sebulba.process import program, run_command

_PROG = program("check")
_DESCRIPTION = """\
Checks that the agent and the environment of a config work together. Steps the environment with
random actions, then runs the agent through the real pipeline on a probe, an environment with the
same spaces and known rows, and asks questions of both. Each answer is ✓ (the property holds), ✗
(with what was expected, what came, and a likely cause), ? (unclear) or – (why it does not apply).

--only NAME…  ask these questions only; may be given several times
--list        print the names of all questions, and end
--json FILE   also write the results to this file, as JSON

With the environment variable JAX_DISABLE_JIT=1 nothing is compiled, and a breakpoint in an agent
shows numbers; choose a tiny config."""


def main() -> None:
    """Parse the command line, run all checks, and exit with 0, 2 or 3."""
    parser = argparse.ArgumentParser(prog=f"{_PROG} CONFIG", add_help=False, allow_abbrev=False)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--only", nargs="+", action="extend", default=[])
    parser.add_argument("--list", action="store_true")
    options, argv = parser.parse_known_args()
    if options.list:
        from sebulba.check.suite import EVERY

        print("\n".join(f"{each.name:12}  {each.property}" for each in EVERY.values()))
        return
    config = flags.parse(argv, _PROG, _DESCRIPTION)
    # Importing jax takes a second, so command line errors and --help come first.
    from sebulba.check.command import run_check

    only = [name for names in options.only for name in names.split(",") if name]
    sys.exit(run_check(config, options.json, only))


if __name__ == "__main__":
    run_command(main)
