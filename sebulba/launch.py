"""Run a config on several hosts, simulated by processes of this machine.

`python -m sebulba.launch --local N [--virtual-devices K] [--cores C] CONFIG [--section.field VALUE
...]` starts N processes of `python -m sebulba.train`, for tests and first steps. Imports no jax.
"""

import sys

from sebulba.config import flags
from sebulba.errors import ConfigError
from sebulba.hosts.local import run_together
from sebulba.process import EXIT_CONFIG, program, run_command
from sebulba.processes.command_line import take_count

_PROG = f"{program('launch')} --local N [--virtual-devices K] [--cores C]"
_DESCRIPTION = """\
Runs a config on N hosts, simulated by N processes of python -m sebulba.train on this machine. Each
line of their output begins with the process's number. When one process fails, the others are ended,
and the exit code is that of the failed one.

--local N             number of processes
--virtual-devices K   number of virtual CPU devices of each process (default: no virtual devices)
--cores C             number of CPU cores of each process (default: an equal part of all)"""


def main() -> None:
    """Parse the command line, run the processes, and exit with the run's exit code."""
    try:
        num_processes, argv = take_count(sys.argv[1:], "--local")
        num_devices, argv = take_count(argv, "--virtual-devices")
        num_cores, argv = take_count(argv, "--cores")
        wants_help = any(argument in ("-h", "--help") for argument in argv)
        if num_processes is None and not wants_help:
            raise ConfigError("--local: expected the number of processes, got no flag")
    except ConfigError as error:
        print(f"usage: {_PROG} CONFIG [--section.field VALUE ...]\n{error}", file=sys.stderr)
        sys.exit(EXIT_CONFIG)
    flags.parse(argv, _PROG, _DESCRIPTION)
    code = run_together(
        argv,
        num_processes=num_processes or 1,
        num_devices=num_devices,
        cores_per_process=num_cores,
    )
    sys.exit(code)


if __name__ == "__main__":
    run_command(main)
