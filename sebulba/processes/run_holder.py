"""A process on any machine that holds one training run as its child. Imports no jax."""

import contextlib
import os
import pathlib
import platform
import select
import signal
import subprocess
import time
from collections.abc import Sequence
from typing import Any

from sebulba.processes.children import Children, exit_code_of
from sebulba.processes.command_line import take_flag
from sebulba.processes.cores import take_least_used_cores
from sebulba.storage.lock import wait_until_released
from sebulba.storage.names import CHECKPOINTS

Order = dict[str, Any]
"""What a run needs: `argv`, of `sebulba.train`; `run_dir`; `log`, its file or None, then `follow`
returns the output; `directory`, in which its command was called; `variables` of its environment;
`num_cpus`; `uses_accelerator`; and `mark`, a file that has to be visible on this machine, or
None."""

_REPLY_S = 1.0
_SHARED_WITHIN_S = 20.0  # The client of a network file system may show a new file later.
_SAVED_WITHIN_S = 60.0


class RunHolder:
    """Starts a run, and tells whoever asks how it goes. Only numbers, text and bytes cross."""

    def __init__(self) -> None:
        self._children = Children()
        self._run: subprocess.Popen[bytes] | None = None

    def follow(self, order: Order, is_again: bool, signals: Sequence[int]) -> dict[str, Any]:
        """Start the run unless it is here, and return after a second, with output, or at its end.

        Args:
            order: what to run.
            is_again: another process had begun the run and was lost: it is resumed.
            signals: numbers of signals for the run.

        Returns:
            `machine`, its name; `is_start`, whether this call has started the run; `problem`, why
            it cannot start on this machine, or None; `output`, bytes since the last call; `code`,
            of the run's end as a shell gives it, or None.
        """
        reply = {"machine": platform.node(), "is_start": False, "problem": None}
        if self._run is None:
            problem = _find_problem(order)
            if problem is None:
                try:
                    self._run = self._start(order, is_again)
                except OSError as error:
                    problem = f"--ray: a run cannot start on {platform.node()}: {error}"
            reply |= {"is_start": problem is None, "problem": problem}
            return {**reply, "output": b"", "code": None}
        for number in signals:
            self._run.send_signal(number)
        output = self._wait()
        code = self._run.poll()
        if code is not None and self._run.stdout is not None:
            output += self._read_rest()
        return {**reply, "output": output, "code": None if code is None else exit_code_of(code)}

    def _start(self, order: Order, is_again: bool) -> subprocess.Popen[bytes]:
        argv, run_dir = order["argv"], pathlib.Path(order["run_dir"])
        if is_again:
            # A run whose parent is gone saves before it ends.
            wait_until_released(run_dir, within_s=_SAVED_WITHIN_S)
            argv = with_resume(argv, run_dir)
        take_least_used_cores(order["num_cpus"])
        variables = dict(order["variables"])
        if not order["uses_accelerator"]:
            # JAX finds GPUs that Ray gave to nobody.
            variables = {"JAX_PLATFORMS": os.environ.get("JAX_PLATFORMS", "cpu"), **variables}
        log = order["log"]
        # Modules of an agent may be there, but need not.
        directory = order["directory"] if os.path.isdir(order["directory"]) else None
        # Ray blocks SIGINT in its processes, and a child would inherit that.
        blocked = signal.pthread_sigmask(signal.SIG_SETMASK, ())
        try:
            with (
                contextlib.nullcontext(subprocess.PIPE) if log is None else open(log, "ab")
            ) as output:
                return self._children.start(
                    argv, variables=variables, directory=directory, output=output
                )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    def _wait(self) -> bytes:
        """Wait for the end of the run, or for output; return the output."""
        assert self._run is not None
        if self._run.stdout is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._run.wait(_REPLY_S)
            return b""
        if not select.select([self._run.stdout], [], [], _REPLY_S)[0]:
            return b""
        if output := os.read(self._run.stdout.fileno(), 1 << 16):
            return output
        with contextlib.suppress(subprocess.TimeoutExpired):  # It has closed its output.
            self._run.wait(_REPLY_S)
        return b""

    def _read_rest(self) -> bytes:
        """Return the output that is left; a process that outlives the run may keep it open."""
        assert self._run is not None and self._run.stdout is not None
        parts = []
        with self._run.stdout as pipe:
            while select.select([pipe], [], [], 0.0)[0]:
                if not (part := os.read(pipe.fileno(), 1 << 16)):
                    break
                parts.append(part)
        return b"".join(parts)


def with_resume(argv: Sequence[str], run_dir: pathlib.Path) -> list[str]:
    """Return the command line of a run that continues from its newest checkpoint, if it has one."""
    checkpoints = run_dir / CHECKPOINTS
    if not (checkpoints.is_dir() and any(each.name.isdecimal() for each in checkpoints.iterdir())):
        return list(argv)
    _, argv = take_flag(argv, "--resume")
    return [*argv, "--resume=latest"]


def _find_problem(order: Order) -> str | None:
    """Return why no run can start on this machine, or None."""
    machine = platform.node()
    if order["mark"] is None:
        return None
    mark = pathlib.Path(order["mark"])
    deadline = time.monotonic() + _SHARED_WITHIN_S
    while True:
        with contextlib.suppress(OSError):
            os.listdir(mark.parent)  # The client of a network file system looks again.
            if mark.is_file():
                return None
        if time.monotonic() > deadline:
            return (
                f"--run-dir: expected a directory that all machines share, but {machine} does not"
                f" see in {mark.parent} what this command has written there. Choose one on a shared"
                " file system"
            )
        time.sleep(0.5)
