"""Training runs that this process starts: they get its signals and end with it."""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import IO, Any

from sebulba.process import EXIT_SIGNAL_BASE, handled

_PR_SET_PDEATHSIG = 1  # of Linux's prctl

PARENT_VARIABLE = "SEBULBA_PARENT_PROCESS"
"""Environment variable of a child: the process with which it ends."""


REPORTS_VARIABLE = "SEBULBA_REPORTS"
"""Environment variable of a child with several runs: the descriptor to which it writes a line for
each run that begins, with its seed, and for each that ends, with its seed and its exit code."""


class Children:
    """Starts runs and forwards signals to them."""

    def __init__(self) -> None:
        self.signal_number: int | None = None  # the last one received
        self._processes: list[subprocess.Popen[bytes]] = []
        self._num_signalled = 0  # processes that existed when it arrived

    def start(
        self,
        argv: Sequence[str],
        *,
        variables: Mapping[str, str] | None = None,
        directory: str | None = None,
        base: Mapping[str, str] = os.environ,
        output: int | IO[bytes] | None = None,
        pass_fds: Sequence[int] = (),
    ) -> subprocess.Popen[bytes]:
        """Start `python -m sebulba.train`.

        Args:
            argv: its command line.
            variables: environment variables, in addition to those of `base`.
            directory: its working directory; None: that of this process.
            base: default: the variables of this process.
            output: file for stdout and stderr; None: inherited.
            pass_fds: descriptors that the child inherits.
        """
        process = subprocess.Popen(
            [sys.executable, "-u", "-m", "sebulba.train", *argv],
            env={**base, **(variables or {}), PARENT_VARIABLE: str(os.getpid())},
            cwd=directory,
            # The terminal sends Ctrl-C to the whole process group. With the forwarded one the child
            # would get two, and the second signal ends a run without saving.
            process_group=0,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=None if output is None else subprocess.STDOUT,
            pass_fds=pass_fds,
        )
        self._processes.append(process)
        # A signal that arrived during `Popen` was not forwarded to this process.
        if self.signal_number is not None and self._num_signalled < len(self._processes):
            process.send_signal(self.signal_number)
        return process

    def run_seeds(self, argv: Sequence[str]) -> tuple[int, dict[int, int | None]]:
        """Run a child that trains several runs, and wait for its end.

        Args:
            argv: its command line, with `--seeds`.

        Returns:
            Its exit code; and by the seed of each run that has begun, the run's exit code, None if
            the run had not ended.
        """
        reader, writer = os.pipe()
        try:
            variables = {REPORTS_VARIABLE: str(writer)}
            process = self.start(argv, variables=variables, pass_fds=[writer])
            code = exit_code_of(process.wait())
            os.set_blocking(reader, False)
            reports = b""
            with suppress(BlockingIOError):
                reports = os.read(reader, 1 << 16)  # all that a pipe holds
            codes: dict[int, int | None] = {}
            for line in reports.decode().splitlines():
                seed, *ended = map(int, line.split())
                codes[seed] = ended[0] if ended else None
            return code, codes
        finally:
            os.close(reader)
            os.close(writer)

    @contextmanager
    def forwarding_signals(self) -> Iterator["Children"]:
        """Forward SIGINT and SIGTERM."""
        with handled(self._forward):
            yield self

    def _forward(self, number: int, frame: Any) -> None:
        self.signal_number, self._num_signalled = number, len(self._processes)
        for process in self._processes:
            process.send_signal(number)


def exit_code_of(returncode: int) -> int:
    """Return a process's exit code as a shell would: 128 + the number of a signal that ended it."""
    return returncode if returncode >= 0 else EXIT_SIGNAL_BASE - returncode


def end_of_reports() -> int | None:
    """Return where this process reports its runs; None: no other process waits for it."""
    descriptor = os.environ.pop(REPORTS_VARIABLE, None)
    if descriptor is None:
        return None
    os.set_inheritable(int(descriptor), False)
    return int(descriptor)


def end_with_parent() -> bool:
    """Make a process that another command started end when that one dies, even by SIGKILL.

    A training run saves first. Linux only: elsewhere a killed parent leaves its children running.

    Returns:
        Whether another command started this process.
    """
    parent = os.environ.pop(PARENT_VARIABLE, None)
    if parent is None or sys.platform != "linux":
        return parent is not None

    # The kernel sends the signal once per thread, and a second SIGTERM would end the run without
    # saving. So it sends SIGHUP, and the first one raises a single SIGTERM.
    def end(number: int, frame: Any) -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.raise_signal(signal.SIGTERM)

    signal.signal(signal.SIGHUP, end)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGHUP))
    if os.getppid() != int(parent):  # The parent died before `prctl`.
        signal.raise_signal(signal.SIGTERM)
    return True
