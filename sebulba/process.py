"""What every command does with its process: standard streams, stop signals, its end.

Imports no jax.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

_LIBRARIES_DEADLINE_S = 2.0


def open_standard_streams() -> None:
    """Open those of stdin, stdout and stderr that are closed, on the null device.

    After `2>&-` the next file that the run opens would become descriptor 2, and C++ libraries would
    write their logs into it.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115 - open for good
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def program(name: str) -> str:
    """Return how the user calls a command: `sebulba train` or `python -m sebulba.train`."""
    return f"sebulba {name}" if sys.argv[0].startswith("sebulba ") else f"python -m sebulba.{name}"


def leave(code: int) -> NoReturn:
    """End the process, also if threads of libraries do not end.

    The interpreter would join them for as long as they run: with no inodes left on the disk, those
    of a checkpoint library kept a process for more than five minutes.
    """
    deadline = time.monotonic() + _LIBRARIES_DEADLINE_S
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and not thread.daemon:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                end_at_once(code)
    sys.exit(code)


def end_at_once(code: int) -> NoReturn:
    """End the process without waiting for any thread."""
    for stream in (sys.stdout, sys.stderr):
        # Whoever read them may be gone; the code is what is left to say.
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


@contextmanager
def handled(receive: Callable[[int, Any], None]) -> Iterator[None]:
    """Hand stop signals to `receive`, as a handler; in the main thread only.

    SIGHUP is one, since a terminal or ssh connection that closes sends it; under `nohup`, which has
    it ignored, it stays ignored.
    """
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    previous = {number: signal.signal(number, receive) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
