"""End a process whose start hangs, such as EnvPool's where an engine of ViZDoom does not start."""

import contextlib
import faulthandler
import sys
import threading
from collections.abc import Iterator

from sebulba.process import EXIT_STUCK, end_process, start_daemon

_POLL_S = 0.2
_GRACE_S = 5.0


@contextlib.contextmanager
def start_within(seconds: float | None) -> Iterator[None]:
    """End the process with `EXIT_STUCK` and all stacks if the block takes longer; None: no limit.

    No exception and no signal's handler reaches a main thread that waits in a library. If that
    library also holds the GIL, as EnvPool does, no thread can say anything: then `faulthandler`
    writes the stacks and ends the process, with code 1. It also counts the time in which the
    process is stopped.
    """
    if seconds is None:
        yield
        return
    is_over = threading.Event()

    def watch() -> None:
        # Short waits: time in which the process is stopped counts little.
        for _ in range(round(seconds / _POLL_S)):
            if is_over.wait(_POLL_S):
                return
        with contextlib.suppress(OSError, ValueError):
            faulthandler.dump_traceback(sys.__stderr__ or 2)
            print(
                f"sebulba: the start still runs after {seconds:g} s (run.compile_timeout_s); the"
                " stacks above show where. Nothing was trained.",
                file=sys.stderr,
            )
        end_process(EXIT_STUCK)

    with contextlib.suppress(OSError, ValueError):
        stderr = sys.__stderr__ or 2
        faulthandler.dump_traceback_later(seconds + _GRACE_S, file=stderr, exit=True)
    watching = start_daemon(watch, "start timeout")
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        is_over.set()
        watching.join()
