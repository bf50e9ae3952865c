"""Runs a config on several hosts that are all this machine.

`python -m sebulba.launch --local N [--virtual-devices K] CONFIG [--section.field VALUE ...]`, for
tests and a first try: N processes of `python -m sebulba.train`, connected over the loopback.
Imports no jax.
"""

import sys

from sebulba.config import flags
from sebulba.errors import ConfigError
from sebulba.exit_codes import EXIT_CONFIG
from sebulba.hosts.command_line import take_count
from sebulba.hosts.local import run_together

_PROG = "python -m sebulba.launch --local N [--virtual-devices K]"
_DESCRIPTION = """\
Runs a config on N hosts that are all this machine: N processes of python -m sebulba.train,
connected over the loopback, each line of their output behind its process's number.
--virtual-devices K gives each process K virtual CPU devices. All end when one fails, whose exit
code this is."""


def main() -> None:
    """Parses the command line, runs the processes, and exits with the run's code."""
    try:
        num_processes, argv = take_count(sys.argv[1:], "--local")
        num_devices, argv = take_count(argv, "--virtual-devices")
        wants_help = any(argument in ("-h", "--help") for argument in argv)
        if num_processes is None and not wants_help:
            raise ConfigError("--local: expected the number of processes, got none")
    except ConfigError as error:
        print(f"usage: {_PROG} CONFIG [--section.field VALUE ...]\n{error}", file=sys.stderr)
        sys.exit(EXIT_CONFIG)
    flags.parse(argv, _PROG, _DESCRIPTION)
    sys.exit(run_together(argv, num_processes=num_processes or 1, num_devices=num_devices))


if __name__ == "__main__":
    main()
