"""Training runs that this process starts: they are told what it is told, and end with it."""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Any

from sebulba.exit_codes import EXIT_SIGNAL_BASE
from sebulba.process import handled

_PARENT_VARIABLE = "SEBULBA_PARENT_PROCESS"
_PR_SET_PDEATHSIG = 1  # of Linux's prctl


class Children:
    """Starts runs, and hands the signals that this process gets on to them."""

    def __init__(self) -> None:
        self.signal_number: int | None = None  # the last that has come
        self._processes: list[subprocess.Popen[bytes]] = []
        self._num_told = 0  # of them, when it came

    def start(
        self,
        argv: Sequence[str],
        *,
        variables: Mapping[str, str] | None = None,
        output: int | IO[bytes] | None = None,
    ) -> subprocess.Popen[bytes]:
        """Starts `python -m sebulba.train`.

        Args:
            argv: its command line.
            variables: of its environment, besides those of this process.
            output: where both of its streams go; None: where those of this process go.
        """
        process = subprocess.Popen(
            [sys.executable, "-u", "-m", "sebulba.train", *argv],
            env={**os.environ, **(variables or {}), _PARENT_VARIABLE: str(os.getpid())},
            # In a process group of its own: Ctrl-C would reach it twice, which ends it unsaved.
            process_group=0,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=None if output is None else subprocess.STDOUT,
        )
        self._processes.append(process)
        # A signal that came while it started has not reached it.
        if self.signal_number is not None and self._num_told < len(self._processes):
            process.send_signal(self.signal_number)
        return process

    @contextmanager
    def told_of_signals(self) -> Iterator["Children"]:
        """Listens for SIGINT and SIGTERM."""
        with handled(self._receive):
            yield self

    def _receive(self, number: int, frame: Any) -> None:
        self.signal_number, self._num_told = number, len(self._processes)
        for process in self._processes:
            process.send_signal(number)


def exit_code_of(returncode: int) -> int:
    """Returns the exit code of a process that has ended, by itself or by a signal."""
    return returncode if returncode >= 0 else EXIT_SIGNAL_BASE - returncode


def end_with_parent() -> None:
    """Makes a process that `Children` started end when the one that started it is gone.

    However that one ended, this one gets a SIGTERM from itself, and is saved. Linux only: elsewhere
    a killed parent leaves its children running.
    """
    parent = os.environ.pop(_PARENT_VARIABLE, None)
    if parent is None or sys.platform != "linux":
        return

    # The kernel sends one signal for each thread, but a second SIGTERM ends a run unsaved.
    def end(number: int, frame: Any) -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.raise_signal(signal.SIGTERM)

    signal.signal(signal.SIGHUP, end)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGHUP))
    if os.getppid() != int(parent):  # It was gone before the kernel was asked.
        signal.raise_signal(signal.SIGTERM)
