"""Run a config on several hosts: machines of a Ray cluster, or processes of this machine.

`python -m sebulba.launch --ray N CONFIG [--section.field VALUE ...]` starts N processes of `python
-m sebulba.train`, each on another machine; `--local N` starts them here, for tests and first steps.
Imports no jax.
"""

import os
import secrets
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from sebulba.config import flags
from sebulba.config.naming import default_run_dir, expanded
from sebulba.errors import ConfigError, refuse
from sebulba.hosts.ray_hosts import run_hosts_on_ray
from sebulba.hosts.rendezvous import TOKEN_VARIABLE
from sebulba.process import program, run_command
from sebulba.processes.children import Children, exit_code_of
from sebulba.processes.command_line import take_count, take_share, take_switch
from sebulba.processes.cores import on_cores_of_process
from sebulba.processes.ray_runs import with_absolute_paths

_PROG = f"{program('launch')} (--ray N | --local N) [--virtual-devices K]"
_DESCRIPTION = """\
Runs a config on N hosts, each of which is a process of python -m sebulba.train. Each line of their
output begins with the process's number. When one process fails, the others are ended, and the exit
code is that of the failed one. The processes need devices of their own: NCCL refuses two of them on
one GPU.

--ray N               number of machines of the Ray cluster at RAY_ADDRESS, an environment variable;
                      without it, all hosts are on this machine. When one is lost, the run is
                      resumed on those that are left. All have to share the run directory
--cpus N, --gpus N    with --ray: CPUs and GPUs of each host (default: 1 and 0)
--min-hosts N         with --ray: after a loss, at least this many hosts (default: 1)
--wait-s S            with --ray: after a loss, wait up to S seconds for as many machines as before
                      (default: 60)
--local N             number of processes on this machine
--cores C             with --local: CPU cores of each process (default: an equal part of all)
--virtual-devices K   number of virtual CPU devices of each process (default: no virtual devices)
--verbose             passed to python -m sebulba.train"""
_GRACE_S = 15.0
_POLL_S = 0.2
_WAIT_S = 60


def main() -> None:
    """Parse the command line, run the processes, and exit with the run's exit code."""
    is_verbose, argv = take_switch(sys.argv[1:], "--verbose")
    try:
        num_processes, argv = take_count(argv, "--local")
        num_machines, argv = take_count(argv, "--ray")
        num_devices, argv = take_count(argv, "--virtual-devices")
        num_cores, argv = take_count(argv, "--cores")
        share, argv = take_share(argv, is_on_ray=num_machines is not None)
        min_hosts, argv = take_count(argv, "--min-hosts")
        wait_s, argv = take_count(argv, "--wait-s")
        wants_help = any(argument in ("-h", "--help") for argument in argv)
        if num_processes is None and num_machines is None and not wants_help:
            raise ConfigError("expected --ray with the number of machines, or --local, got neither")
        of_ray = {"--local": num_processes, "--cores": num_cores}
        of_here = {"--min-hosts": min_hosts, "--wait-s": wait_s}
        for flag, value in (of_here if num_machines is None else of_ray).items():
            if value is not None:
                other = "without --ray" if num_machines is None else "with --ray"
                raise ConfigError(f"{flag}: cannot be used {other}")
    except ConfigError as error:
        sys.exit(refuse(error, usage=f"usage: {_PROG} CONFIG [--section.field VALUE ...]"))
    config = flags.parse(argv, _PROG, _DESCRIPTION)
    argv = [*argv, "--verbose"] if is_verbose else argv
    if num_machines is None:
        code = run_together(
            argv,
            num_processes=num_processes or 1,
            num_devices=num_devices,
            cores_per_process=num_cores,
        )
        sys.exit(code)
    run_dir = expanded(config.run_dir or default_run_dir(config)).absolute()
    try:
        code = run_hosts_on_ray(
            with_absolute_paths(argv, run_dir),
            num_hosts=num_machines,
            share=share,
            run_dir=run_dir,
            heartbeat_timeout_s=config.distributed.heartbeat_timeout_s,
            min_hosts=min(min_hosts or 1, num_machines),
            wait_s=_WAIT_S if wait_s is None else wait_s,
            variables=_variables_of_devices(num_devices),
        )
    except ConfigError as error:
        sys.exit(refuse(error))
    sys.exit(code)


def _variables_of_devices(num_devices: int | None) -> dict[str, str]:
    if num_devices is None:
        return {}
    return {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(num_devices)}


def run_together(
    argv: Sequence[str],
    *,
    num_processes: int,
    num_devices: int | None,
    cores_per_process: int | None = None,
    grace_s: float = _GRACE_S,
) -> int:
    """Run `python -m sebulba.train` in several processes, and forward signals to them.

    Args:
        argv: the command line of the run.
        num_processes: number of hosts.
        num_devices: virtual CPU devices of each process; None: the devices of the machine.
        cores_per_process: CPU cores of each process; None: an equal part of the machine's. On Linux
            only; elsewhere all share them. Processes that share cores delay each other's updates.
        grace_s: seconds from the first failure until the other processes are killed.

    Returns:
        0 if all ended with 0, else the exit code of the first failure (128 + signal number).
    """
    # The port is free again before the first host binds it; another process could take it.
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    connection = [
        *("--distributed.mode", "manual"),
        *("--distributed.coordinator", f"127.0.0.1:{port}"),
        *("--distributed.num-processes", str(num_processes)),
    ]
    # Other users of the machine reach the port too.
    variables = {TOKEN_VARIABLE: secrets.token_hex(16), **_variables_of_devices(num_devices)}
    with Children().forwarding_signals() as children:
        processes = []
        for number in range(num_processes):
            with on_cores_of_process(
                number, num_processes=num_processes, cores_per_process=cores_per_process
            ):
                processes.append(
                    children.start(
                        [*argv, *connection, "--distributed.process-id", str(number)],
                        variables=variables,
                        output=subprocess.PIPE,
                    )
                )
        with _Output(processes) as output:
            return _wait(processes, output, grace_s)


def _wait(processes: Sequence[subprocess.Popen[bytes]], output: "_Output", grace_s: float) -> int:
    """Wait for all processes; `grace_s` after the first failure, kill the others."""
    first_failure: int | None = None
    deadline = float("inf")
    while any(process.poll() is None for process in processes):
        output.copy(_POLL_S)
        codes = [process.poll() for process in processes]
        if first_failure is None:
            first_failure = next((code for code in codes if code), None)
            deadline = time.monotonic() + grace_s if first_failure is not None else deadline
        if time.monotonic() > deadline:
            for process in processes:
                process.kill()
    output.copy_rest()
    return exit_code_of(first_failure or next(filter(None, (p.wait() for p in processes)), 0))


class _Output:
    """Copies the processes' output to stderr, each line prefixed with the number of its host."""

    def __init__(self, processes: Sequence[subprocess.Popen[bytes]]):
        self._selector = selectors.DefaultSelector()
        self._incomplete: dict[int, bytes] = {}  # the unfinished last line of each process
        self._pipes = [process.stdout for process in processes if process.stdout is not None]
        for number, pipe in enumerate(self._pipes):
            self._selector.register(pipe, selectors.EVENT_READ, number)

    def __enter__(self) -> "_Output":
        return self

    def __exit__(self, *error: Any) -> None:
        self._selector.close()
        for pipe in self._pipes:
            pipe.close()

    def copy(self, timeout_s: float) -> bool:
        """Copy the available output; wait at most `timeout_s` for any."""
        events = self._selector.select(timeout_s)
        for key, _ in events:
            data = os.read(key.fd, 1 << 16)
            if not data:
                self._selector.unregister(key.fileobj)
            *lines, rest = (self._incomplete.get(key.data, b"") + data).split(b"\n")
            self._incomplete[key.data] = rest
            if not data and rest:
                lines.append(self._incomplete.pop(key.data))
            for line in lines:
                text = line.decode(errors="replace")
                print(f"[{key.data}] {text}", file=sys.stderr, flush=True)
        return bool(events)

    def copy_rest(self) -> None:
        """Copy the remaining output after all processes have ended."""
        while self._selector.get_map() and self.copy(0.0):
            pass


if __name__ == "__main__":
    run_command(main)
