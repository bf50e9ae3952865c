"""Threads that start, are watched and end together: the only module that creates threads.

The first exception of any of them is raised in the thread that waits, with its own traceback and a
note that says where it happened.
"""

import dataclasses
import faulthandler
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from sebulba.errors import PLACE
from sebulba.ring.queues import Closed
from sebulba.ring.run_end import RunEnd
from sebulba.ring.timing import COMPILE, WallClock
from sebulba.ring.watchdog import Watchdog, WatchdogError

_POLL_S = 0.2


class StuckError(RuntimeError):
    """A thread did not end in time; its `__context__` is why the run was stopped.

    The process has to end by `sebulba.run.endings.end_process`.

    Attributes:
        is_compiling: all that is left are compilations, which nothing can interrupt.
    """

    def __init__(self, message: str, *, is_compiling: bool = False):
        self.is_compiling = is_compiling
        super().__init__(message)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """What a thread does, and its current place for messages."""

    name: str
    target: Callable[[], None]
    place: Callable[[], str]
    clock: WallClock


def start_daemon(target: Callable[[], None], name: str) -> threading.Thread:
    """Start and return a thread that does not keep the process alive."""
    thread = threading.Thread(target=target, name=name, daemon=True)
    thread.start()
    return thread


class Supervisor:
    """Starts threads, and collects how they ended."""

    def __init__(self) -> None:
        # Not a `SimpleQueue`: in CPython 3.11 its `get(timeout)` never returns if a signal handler
        # had to wait for the GIL until after the timeout.
        self._ends: queue.Queue[tuple[str, BaseException | None]] = queue.Queue()
        self._threads: dict[threading.Thread, WallClock] = {}
        self._has_dumped = False

    def start(self, task: Task) -> None:
        """Start a daemon thread for the task."""

        def guarded() -> None:
            error: BaseException | None = None
            try:
                with noting(task.place):
                    task.target()
            except Closed:
                pass
            except BaseException as caught:
                error = caught
            finally:
                self._ends.put((task.name, error))

        self._threads[start_daemon(guarded, task.name)] = task.clock

    def wait_for(
        self,
        name: str,
        run_end: RunEnd,
        on_poll: Callable[[], None],
        watchdog: Watchdog,
    ) -> None:
        """Wait until the named thread has ended or `run_end` interrupts; poll meanwhile.

        Raises:
            WatchdogError: a thread exceeded its limit; the stacks of all threads go to stderr.
            BaseException: the exception that ended any of the threads.
        """
        while not run_end.interrupts:
            on_poll()
            try:
                watchdog.check()
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
        self, deadline_s: float, *, awaits_compilation: Callable[[], bool] = lambda: False
    ) -> None:
        """Wait for all threads; the deques must be closed.

        A thread in an activity that took longer before, such as the update of a large network, is
        not stuck until it has taken twice that time.

        Args:
            deadline_s: the time that the threads have, also after such an activity.
            awaits_compilation: whether they have it after a compilation, too; asked several times a
                second.

        Raises:
            StuckError: some did not end in time; the stacks of all threads go to stderr.
        """
        deadline = time.perf_counter() + deadline_s
        for thread, clock in self._threads.items():
            while thread.is_alive():
                now = time.perf_counter()
                if now < _usual_end(clock) or (_is_compiling(clock) and awaits_compilation()):
                    deadline = max(deadline, now + deadline_s)
                elif now >= deadline:
                    break
                thread.join(_POLL_S)
        stuck = [thread for thread in self._threads if thread.is_alive()]
        if not stuck:
            return
        names = " and ".join(thread.name for thread in stuck)
        if all(_is_compiling(self._threads[thread]) for thread in stuck):
            raise StuckError(f"{names} still compiling after {deadline_s:g} s", is_compiling=True)
        self._dump_stacks()
        raise StuckError(f"{names} did not end within {deadline_s:g} s")

    def _dump_stacks(self) -> None:
        if not self._has_dumped:
            # An error here would hide the one that the stacks are for.
            with suppress(OSError, ValueError):
                faulthandler.dump_traceback(sys.__stderr__ or 2)
        self._has_dumped = True


def _is_compiling(clock: WallClock) -> bool:
    current = clock.current
    return current is not None and current[0] == COMPILE


def _usual_end(clock: WallClock) -> float:
    """Return when the current activity has taken twice as long as ever before."""
    current = clock.current
    if current is None or current[0] == COMPILE:
        return 0.0
    activity, since = current
    return since + 2 * clock.longest.get(activity, 0.0)


@contextmanager
def noting(place: Callable[[], str]) -> Iterator[None]:
    """Add a note that says where it happened to an exception that passes through."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"{PLACE} {place()}.")
        raise
