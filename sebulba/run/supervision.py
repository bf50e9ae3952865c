"""Runs a ring: the only module that creates threads.

Whoever calls `run` is the supervisor. The actors, the learner and the metrics writer are daemon
threads; the first exception of any of them closes the deques, which ends all the others, and is
raised here with its own traceback and a note that says where it happened.
"""

import dataclasses
import faulthandler
import functools
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import jax

from sebulba.acting.actor import Actor, run_actor
from sebulba.learning.learner import Learner, run_learner
from sebulba.ring.queues import Closed
from sebulba.ring.watchdog import Watchdog, WatchdogError, Watched, actor_limits, learner_limits
from sebulba.run.assembly import Ring
from sebulba.signals import handled
from sebulba.storage.metrics.writers import WriterQueue
from sebulba.types import TrajectoryItem

_POLL_S = 0.2
# Together with what follows, saving and the writers, a stop is to take 10 s at most.
_STOP_DEADLINE_S = 7.0
_STOP_DEADLINE_OF_STUCK_S = 1.0


class StuckError(RuntimeError):
    """A thread did not end in time; what the run was stopped for is its `__context__`.

    The process cannot end as others do: see `sebulba.run.endings.end_process`.
    """


@dataclasses.dataclass(frozen=True, kw_only=True)
class Thread:
    """A thread's task, and where it is now, for messages."""

    name: str
    target: Callable[[], None]
    place: Callable[[], str]


def start_daemon(target: Callable[[], None], name: str) -> threading.Thread:
    """Start and return a thread that does not keep the process alive."""
    thread = threading.Thread(target=target, name=name, daemon=True)
    thread.start()
    return thread


class Supervisor:
    """Starts threads and hears of their ends."""

    def __init__(self) -> None:
        # No `SimpleQueue`: in CPython 3.11 its `get` never returns after a signal whose handler had
        # to wait for the GIL until the timeout was over.
        self._ends: queue.Queue[tuple[str, BaseException | None]] = queue.Queue()
        self._threads: list[threading.Thread] = []
        self._has_dumped = False

    def start(self, thread: Thread) -> None:
        """Starts a daemon thread."""

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

        self._threads.append(start_daemon(guarded, thread.name))

    def wait_for(
        self,
        name: str,
        should_stop: Callable[[], bool],
        on_poll: Callable[[], None],
        watchdog: Watchdog,
    ) -> None:
        """Waits until the named thread has ended, or `should_stop`; calls `on_poll` meanwhile.

        Raises:
            WatchdogError: a thread is stuck; the stacks of all threads go to stderr.
            BaseException: whatever ended any of the threads.
        """
        while not should_stop():
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

    def join(self, deadline_s: float) -> None:
        """Waits for all threads, which must have been told to end.

        Raises:
            StuckError: some did not in time; the stacks of all threads go to stderr.
        """
        deadline = time.monotonic() + deadline_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        stuck = [thread.name for thread in self._threads if thread.is_alive()]
        if stuck:
            self._dump_stacks()
            raise StuckError(f"{' and '.join(stuck)} did not end within {deadline_s:g} s")

    def _dump_stacks(self) -> None:
        if not self._has_dumped:
            faulthandler.dump_traceback(sys.__stderr__ or 2)
        self._has_dumped = True


class StopSignal:
    """Whether the user asked the run to stop; a second time ends the process at once."""

    def __init__(self) -> None:
        self.number: int | None = None

    def is_set(self) -> bool:
        """Whether a signal has come."""
        return self.number is not None

    @contextmanager
    def installed(self) -> Iterator["StopSignal"]:
        """Listens for SIGINT and SIGTERM; in the main thread only, where Python allows it."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        with handled(self._receive):
            yield self

    def _receive(self, number: int, frame: Any) -> None:
        if self.number is not None:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self.number = number


def run(
    ring: Ring,
    *,
    mode: Literal["threads", "serial"],
    writer_queues: Sequence[WriterQueue] = (),
    should_stop: Callable[[], bool] = lambda: False,
    after_cycle: Callable[[Sequence[TrajectoryItem]], None] = lambda items: None,
    on_poll: Callable[[], None] = lambda: None,
    env_timeout_s: float | None = None,
    update_timeout_s: float | None = None,
) -> None:
    """Runs the ring until its goal is reached or `should_stop`, and ends every thread of it.

    Args:
        ring: a new one, or a restored one.
        mode: `threads`, or everything but the writers in this one.
        writer_queues: of metrics writers; each gets a thread, which ends when its queue is closed.
        should_stop: asked several times a second.
        after_cycle: is given the trajectories of each learner cycle, in the learner's thread.
        on_poll: called several times a second, in this thread.
        env_timeout_s: seconds that an actor may be in its environment; None: any number. The thread
            of `serial` is nobody's to watch.
        update_timeout_s: seconds that the updates of a learner cycle may take.

    Raises:
        Exception: the first of any thread, with a note that says where it happened.
        WatchdogError: a thread took longer than it may.
        StuckError: a thread did not end in time.
    """
    for writer_queue in writer_queues:
        start_daemon(writer_queue.run, f"writer {writer_queue.name}")
    if mode == "serial":
        run_serial(ring, should_stop, after_cycle, on_poll)
    else:
        watchdog = _watchdog(ring, env_timeout_s, update_timeout_s)
        run_threads(ring, should_stop, after_cycle, on_poll, watchdog)


def run_threads(
    ring: Ring,
    should_stop: Callable[[], bool],
    after_cycle: Callable[[Sequence[TrajectoryItem]], None],
    on_poll: Callable[[], None],
    watchdog: Watchdog,
) -> None:
    """Runs the ring to its goal: a thread for each actor and one for the learner."""
    supervisor = Supervisor()
    deadline_s = _STOP_DEADLINE_S
    try:
        supervisor.start(
            Thread(
                name="learner",
                target=lambda: run_learner(
                    ring.learner,
                    schedule=ring.schedule,
                    trajectories=ring.trajectories,
                    stagings=ring.stagings,
                    progress=ring.progress,
                    after_cycle=after_cycle,
                ),
                place=lambda: _place_of_learner(ring.learner),
            )
        )
        for actor, device in zip(ring.actors, ring.actor_devices, strict=True):
            supervisor.start(_actor_thread(ring, actor, device))
        supervisor.wait_for("learner", should_stop, on_poll, watchdog)
    except WatchdogError:
        deadline_s = _STOP_DEADLINE_OF_STUCK_S
        raise
    finally:
        ring.close()
        supervisor.join(deadline_s)
        ring.ledger.discard_in_flight()


def _watchdog(ring: Ring, env_timeout_s: float | None, update_timeout_s: float | None) -> Watchdog:
    learner = Watched(
        name="the learner",
        clock=ring.learner.clock,
        place=lambda: _place_of_learner(ring.learner),
        limits=learner_limits(update_timeout_s),
    )
    actors = [
        Watched(
            name=f"actor {actor.actor_id}",
            clock=actor.clock,
            place=functools.partial(_place_of_actor, actor),
            limits=actor_limits(env_timeout_s),
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
    )


def run_serial(
    ring: Ring,
    should_stop: Callable[[], bool],
    after_cycle: Callable[[Sequence[TrajectoryItem]], None],
    on_poll: Callable[[], None],
) -> None:
    """Runs the ring to its goal in this thread, in the order of lock-step."""
    learner, progress = ring.learner, ring.progress
    try:
        learner.stage(ring.stagings)
        while not progress.is_done and not should_stop():
            turn = ring.schedule.actors_in_turn(learner.num_cycles)
            items = [_act_serially(ring, actor_id) for actor_id in turn]
            learner.clock.restart()
            with _noting(lambda: _place_of_learner(learner)):
                metrics = learner.run_cycle(items)
                learner.stage(ring.stagings)
                progress.record(items, metrics, queue_depth=len(ring.trajectories))
                after_cycle(items)
                learner.check_finite()
            on_poll()
    finally:
        ring.close()
        ring.ledger.discard_in_flight()


def _act_serially(ring: Ring, actor_id: int) -> TrajectoryItem:
    actor = ring.actors[actor_id]
    actor.clock.restart()
    with _noting(lambda: _place_of_actor(actor)):
        version, networks = ring.stagings[ring.actor_devices[actor_id]].newest(0)
        ring.trajectories.put(actor.run_cycle(networks, version))
        return ring.trajectories.get(actor_id)


def _place_of_actor(actor: Actor) -> str:
    return f"actor {actor.actor_id}, cycle {actor.num_cycles}"


def _place_of_learner(learner: Learner) -> str:
    return f"the learner, cycle {learner.num_cycles}"


@contextmanager
def _noting(place: Callable[[], str]) -> Iterator[None]:
    """Adds a note that says where it happened to an exception on its way out."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"This happened in {place()}.")
        raise
