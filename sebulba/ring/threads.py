"""Threads that start and end together.

The first exception of any of them is raised in the thread that waits, with its own traceback.
"""

import faulthandler
import queue
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from sebulba.process import start_daemon
from sebulba.ring.clocks import COMPILE, MAKE_ENVIRONMENTS, WallClock
from sebulba.ring.deques import Closed
from sebulba.ring.run_end import RunEnd, StuckError

_POLL_S = 0.2
# What nothing can interrupt and may take long, each time in another way; in messages.
_AT_THE_BEGINNING = {COMPILE: "compiling", MAKE_ENVIRONMENTS: "making environments"}


class WatchdogError(RuntimeError):
    """A thread exceeded the limit of its activity; an observer raises it from `on_poll`."""


class Threads:
    """Starts threads, waits for one of them, and ends them all."""

    def __init__(self) -> None:
        # Not a `SimpleQueue`: in CPython 3.11 its `get(timeout)` never returns if a signal handler
        # had to wait for the GIL until after the timeout.
        self._ends: queue.Queue[tuple[str, BaseException | None]] = queue.Queue()
        self._threads: dict[threading.Thread, WallClock] = {}
        self._has_dumped = False

    def start(self, name: str, target: Callable[[], None], clock: WallClock) -> None:
        """Start a daemon thread, whose activity the clock shows."""

        def guarded() -> None:
            error: BaseException | None = None
            try:
                target()
            except Closed:
                pass
            except BaseException as caught:
                error = caught
            finally:
                self._ends.put((name, error))

        self._threads[start_daemon(guarded, name)] = clock

    def wait(self, name: str, end: RunEnd, on_poll: Callable[[], None]) -> None:
        """Wait until the named thread has ended or `end` closes the deques at once; poll meanwhile.

        Raises:
            WatchdogError: a thread exceeded its limit; the stacks of all threads go to stderr.
            BaseException: the exception that ended any of the threads, or that `on_poll` raised.
        """
        while not end.closes_at_once:
            try:
                on_poll()
            except WatchdogError:
                self._dump_stacks()
                raise
            try:
                ended, error = self._ends.get(timeout=_POLL_S)
            except queue.Empty:
                continue
            if error is not None:
                raise error
            if ended == name:
                return

    def join(
        self,
        deadline_s: float,
        *,
        may_compile: Callable[[float], bool] = lambda seconds: False,
    ) -> StuckError | None:
        """Wait for all threads; the deques must be closed. Return an error if some do not end.

        Some activities are waited for, and the deadline starts again when they end: a compilation
        for as long as `may_compile` says, any other for twice its longest time so far, since the
        update of a large network may take minutes, and making environments for the longer of both.

        Args:
            deadline_s: the time in which the threads have to end.
            may_compile: whether a thread may continue to compile or to make environments, for which
                it has taken these seconds; asked several times a second.
        """
        deadline = time.perf_counter() + deadline_s
        for thread, clock in self._threads.items():
            while thread.is_alive():
                now, current = time.perf_counter(), clock.current
                is_waited_for = False
                if current is not None:
                    activity, since = current
                    # The longest compilation was that of another program.
                    if activity != COMPILE:
                        is_waited_for = now - since < 2 * clock.longest.get(activity, 0.0)
                    if activity in _AT_THE_BEGINNING:
                        is_waited_for = is_waited_for or may_compile(now - since)
                if is_waited_for:
                    deadline = max(deadline, now + deadline_s)
                elif now >= deadline:
                    break
                thread.join(_POLL_S)
        stuck = [thread for thread in self._threads if thread.is_alive()]
        if not stuck:
            return None
        threads = [thread.name for thread in stuck]
        names = " and ".join(threads)
        begun = [self._threads[thread].current for thread in stuck]
        activities = {"" if current is None else current[0] for current in begun}
        if activities <= _AT_THE_BEGINNING.keys():
            what = " and ".join(
                text for key, text in _AT_THE_BEGINNING.items() if key in activities
            )
            return StuckError(
                f"{names} still {what} after {deadline_s:g} s", threads=threads, what=what
            )
        self._dump_stacks()
        return StuckError(f"{names} did not end within {deadline_s:g} s", threads=threads)

    def late_error(self) -> BaseException | None:
        """Return the first error of the threads that have ended since `wait`."""
        while not self._ends.empty():
            if (error := self._ends.get()[1]) is not None:
                return error
        return None

    def _dump_stacks(self) -> None:
        if not self._has_dumped:
            # An error here would hide the one that the stacks are for.
            with suppress(OSError, ValueError):
                faulthandler.dump_traceback(sys.__stderr__ or 2)
        self._has_dumped = True
