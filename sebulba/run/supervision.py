"""Runs a ring: the only module that creates threads.

The thread that calls `run` is the supervisor. The actors, the learner and the metrics writers are
daemon threads. The first exception of any of them closes the deques, which ends all others, and is
raised here with its own traceback and a note that says where it happened.
"""

import dataclasses
import faulthandler
import functools
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Literal

import jax

from sebulba.acting.actor import Actor, run_actor
from sebulba.errors import PLACE
from sebulba.learning.learner import Learner, run_learner
from sebulba.ring.queues import Closed
from sebulba.ring.run_end import RunEnd
from sebulba.ring.timing import COMPILE, WallClock
from sebulba.ring.watchdog import Timeouts, Watchdog, WatchdogError, Watched
from sebulba.run.anakin import Anakin, reason_against
from sebulba.run.assembly import Ring
from sebulba.storage.metrics.writers import WriterQueue
from sebulba.types import TrajectoryItem

_POLL_S = 0.2
# A stop takes 10 s at most, of which saving and closing the writers need the rest, unless an
# update takes longer.
_STOP_DEADLINE_S = 7.0
_STOP_DEADLINE_OF_STUCK_S = 1.0
_NO_LIMITS = Timeouts()


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
class Thread:
    """A thread's task, and its current place for messages."""

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

    def start(self, thread: Thread) -> None:
        """Start a daemon thread."""

        def guarded() -> None:
            error: BaseException | None = None
            try:
                with _noting(thread.place):
                    thread.target()
            except Closed:
                pass
            except BaseException as caught:
                error = caught
            finally:
                self._ends.put((thread.name, error))

        self._threads[start_daemon(guarded, thread.name)] = thread.clock

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
        not stuck, and gets twice that time.

        Args:
            deadline_s: the time that the threads have.
            awaits_compilation: whether a thread that compiles has this time after it, too; asked
                several times a second.

        Raises:
            StuckError: some did not end in time; the stacks of all threads go to stderr.
        """
        deadline = time.perf_counter() + deadline_s
        for thread, clock in self._threads.items():
            while thread.is_alive():
                if _is_compiling(clock) and awaits_compilation():
                    deadline = max(deadline, time.perf_counter() + deadline_s)
                left = max(deadline, _usual_end(clock)) - time.perf_counter()
                if left <= 0:
                    break
                thread.join(min(left, _POLL_S))
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


def run(
    ring: Ring,
    *,
    mode: Literal["threads", "serial", "anakin", "auto"],
    writer_queues: Sequence[WriterQueue] = (),
    after_cycle: Callable[[Sequence[TrajectoryItem]], None] = lambda items: None,
    on_poll: Callable[[], None] = lambda: None,
    timeouts: Timeouts = _NO_LIMITS,
) -> None:
    """Run the ring until its `run_end` is set, and end every thread of it.

    Args:
        ring: a new or a restored one.
        mode: `run.mode`; `serial` runs everything but the writers in this thread.
        writer_queues: of the metrics writers; each gets a thread, which ends with its queue.
        after_cycle: takes the trajectories of each learner cycle, in the learner's thread.
        on_poll: called several times a second, in this thread.
        timeouts: limits of the threads. `serial` has none: a debugger may hold it anywhere.

    Raises:
        Exception: the first of any thread, with a note that says where it happened.
        WatchdogError: a thread exceeded its limit.
        StuckError: a thread did not end in time.
    """
    for writer_queue in writer_queues:
        start_daemon(writer_queue.run, f"writer {writer_queue.name}")
    if mode == "serial":
        run_serial(ring, after_cycle, on_poll)
        return
    anakin = _anakin(ring, mode)
    if anakin is None:
        threads = _ring_threads(ring, after_cycle)
    else:
        threads = [_learner_thread(ring, lambda: run_anakin(anakin, after_cycle))]
    run_threads(ring, threads, on_poll, _watchdog(ring, timeouts))


def _anakin(ring: Ring, mode: str) -> Anakin | None:
    """Return the program of acting and learning; None: the run has threads for them."""
    if mode == "threads" or (mode == "auto" and reason_against(ring) is not None):
        return None
    anakin = Anakin(ring)
    return None if mode == "auto" and anakin.is_slow else anakin


def run_threads(
    ring: Ring,
    threads: Sequence[Thread],
    on_poll: Callable[[], None],
    watchdog: Watchdog,
) -> None:
    """Run the ring to its end in threads, of which the first is the learner's."""
    supervisor, run_end = Supervisor(), ring.run_end
    deadline_s = _STOP_DEADLINE_S

    def awaits_compilation() -> bool:
        """Whether an actor may go on compiling: the run has reached its goal and is to be saved."""
        if run_end.goal and not run_end.is_interrupted:
            with suppress(WatchdogError):
                watchdog.check()
                return True
        return False

    try:
        for thread in threads:
            supervisor.start(thread)
        supervisor.wait_for("learner", run_end, on_poll, watchdog)
    except WatchdogError:
        deadline_s = _STOP_DEADLINE_OF_STUCK_S
        raise
    finally:
        ring.close()
        supervisor.join(deadline_s, awaits_compilation=awaits_compilation)
        ring.ledger.discard_in_flight()


def _ring_threads(
    ring: Ring, after_cycle: Callable[[Sequence[TrajectoryItem]], None]
) -> list[Thread]:
    """Return a thread for the learner and one for each actor."""
    learner = _learner_thread(
        ring,
        lambda: run_learner(
            ring.learner,
            schedule=ring.schedule,
            trajectories=ring.trajectories,
            stagings=ring.stagings,
            progress=ring.progress,
            run_end=ring.run_end,
            after_cycle=after_cycle,
        ),
    )
    actors = zip(ring.actors, ring.actor_devices, strict=True)
    return [learner, *(_actor_thread(ring, actor, device) for actor, device in actors)]


def _learner_thread(ring: Ring, target: Callable[[], None]) -> Thread:
    return Thread(
        name="learner",
        target=target,
        place=lambda: _place_of_learner(ring.learner),
        clock=ring.learner.clock,
    )


def run_anakin(anakin: Anakin, after_cycle: Callable[[Sequence[TrajectoryItem]], None]) -> None:
    """Run learner cycles in one program each until the run's goal is reached.

    Raises:
        Closed: the run is stopping.
        NonFiniteError: too many updates in a row were not finite.
        EnvironmentFault: data of an environment were not finite.
    """
    ring = anakin.ring
    ring.learner.clock.restart()
    ring.learner.stage(ring.stagings)
    while not ring.run_end.is_set:
        is_regular = anakin.run_call(after_cycle)
        ring.learner.check()
        if not is_regular:
            anakin.give_to_actors()
            learn_serially(ring, act_serially(ring), after_cycle)
            anakin.take_from_actors()


def _watchdog(ring: Ring, timeouts: Timeouts) -> Watchdog:
    learner = Watched(
        name="the learner",
        clock=ring.learner.clock,
        place=lambda: _place_of_learner(ring.learner),
        limits=timeouts.of_learner(),
    )
    actors = [
        Watched(
            name=f"actor {actor.actor_id}",
            clock=actor.clock,
            place=functools.partial(_place_of_actor, actor),
            limits=timeouts.of_actor(),
        )
        for actor in ring.actors
    ]
    return Watchdog([learner, *actors])


def _actor_thread(ring: Ring, actor: Actor, device: jax.Device) -> Thread:
    return Thread(
        name=f"actor {actor.actor_id}",
        target=lambda: run_actor(
            actor,
            schedule=ring.schedule,
            staging=ring.stagings[device],
            trajectories=ring.trajectories,
        ),
        place=lambda: _place_of_actor(actor),
        clock=actor.clock,
    )


def run_serial(
    ring: Ring,
    after_cycle: Callable[[Sequence[TrajectoryItem]], None],
    on_poll: Callable[[], None],
) -> None:
    """Run the ring to its end in this thread; equal to threads with the same policy lag."""
    try:
        ring.learner.stage(ring.stagings)
        while not ring.run_end.is_set:
            learn_serially(ring, act_serially(ring), after_cycle)
            on_poll()
    finally:
        ring.close()
        ring.ledger.discard_in_flight()


def act_serially(ring: Ring) -> list[TrajectoryItem]:
    """Act the trajectories of the next learner cycle, in actor order."""
    return [
        _act_one(ring, actor_id)
        for actor_id in ring.schedule.actors_in_turn(ring.learner.num_cycles)
    ]


def learn_serially(
    ring: Ring,
    items: Sequence[TrajectoryItem],
    after_cycle: Callable[[Sequence[TrajectoryItem]], None] = lambda items: None,
) -> None:
    """Run one learner cycle."""
    learner = ring.learner
    learner.clock.restart()
    with _noting(lambda: _place_of_learner(learner)):
        metrics = learner.run_cycle(items)
        learner.stage(ring.stagings)
        ring.progress.record(items, metrics, queue_depth=len(ring.trajectories))
        after_cycle(items)
        learner.check()


def _act_one(ring: Ring, actor_id: int) -> TrajectoryItem:
    actor = ring.actors[actor_id]
    actor.clock.restart()
    with _noting(lambda: _place_of_actor(actor)):
        wanted = ring.schedule.policy_version(actor_id, actor.num_cycles)
        version, networks = ring.stagings[ring.actor_devices[actor_id]].take(wanted)
        ring.trajectories.put(actor.run_cycle(networks, version))
        return ring.trajectories.get(actor_id)


def _place_of_actor(actor: Actor) -> str:
    return f"actor {actor.actor_id}, cycle {actor.num_cycles}"


def _place_of_learner(learner: Learner) -> str:
    return f"the learner, cycle {learner.num_cycles}"


@contextmanager
def _noting(place: Callable[[], str]) -> Iterator[None]:
    """Add a note that says where it happened to an exception that passes through."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"{PLACE} {place()}.")
        raise
