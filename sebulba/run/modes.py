"""Runs a ring in each `run.mode`: with threads, in this thread, or as one program.

With threads, the one that calls `run` supervises the others. The actors, the learner and the
metrics writers are daemon threads. The first exception of any of them closes the deques, which ends
all others.
"""

import functools
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Literal

import jax

from sebulba.acting.actor import Actor, run_actor
from sebulba.learning.learner import Learner, run_learner
from sebulba.ring.watchdog import Timeouts, Watchdog, WatchdogError, Watched
from sebulba.run.anakin import Anakin, reason_against
from sebulba.run.assembly import Ring
from sebulba.run.supervision import Supervisor, Task, noting, start_daemon
from sebulba.storage.metrics.writers import WriterQueue
from sebulba.types import TrajectoryItem

# A stop takes 10 s at most, of which saving and closing the writers need the rest, unless an
# update takes longer.
_STOP_DEADLINE_S = 7.0
_STOP_DEADLINE_OF_STUCK_S = 1.0
_NO_LIMITS = Timeouts()


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
        _run_serial(ring, after_cycle, on_poll)
        return
    anakin = _anakin(ring, mode)
    if anakin is None:
        tasks = _ring_tasks(ring, after_cycle)
    else:
        tasks = [_learner_task(ring, lambda: _run_anakin(anakin, after_cycle))]
    _run_threads(ring, tasks, on_poll, _watchdog(ring, timeouts))


def _anakin(ring: Ring, mode: str) -> Anakin | None:
    """Return the program of acting and learning; None: the run has threads for them."""
    if mode == "threads" or (mode == "auto" and reason_against(ring) is not None):
        return None
    anakin = Anakin(ring)
    return None if mode == "auto" and anakin.is_slow else anakin


def _run_threads(
    ring: Ring,
    tasks: Sequence[Task],
    on_poll: Callable[[], None],
    watchdog: Watchdog,
) -> None:
    """Run the ring to its end with a thread for each task."""
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
        for task in tasks:
            supervisor.start(task)
        supervisor.wait_for("learner", run_end, on_poll, watchdog)
    except WatchdogError:
        deadline_s = _STOP_DEADLINE_OF_STUCK_S
        raise
    finally:
        ring.close()
        supervisor.join(deadline_s, awaits_compilation=awaits_compilation)
        ring.ledger.discard_in_flight()


def _ring_tasks(ring: Ring, after_cycle: Callable[[Sequence[TrajectoryItem]], None]) -> list[Task]:
    """Return the learner's task and one for each actor."""
    learner = _learner_task(
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
    return [learner, *(_actor_task(ring, actor, device) for actor, device in actors)]


def _learner_task(ring: Ring, target: Callable[[], None]) -> Task:
    return Task(
        name="learner",
        target=target,
        place=lambda: _place_of_learner(ring.learner),
        clock=ring.learner.clock,
    )


def _run_anakin(anakin: Anakin, after_cycle: Callable[[Sequence[TrajectoryItem]], None]) -> None:
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
            limits=timeouts.of_actor(ring.learner.clock.longest_update),
        )
        for actor in ring.actors
    ]
    return Watchdog([learner, *actors])


def _actor_task(ring: Ring, actor: Actor, device: jax.Device) -> Task:
    return Task(
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


def _run_serial(
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
    with noting(lambda: _place_of_learner(learner)):
        metrics = learner.run_cycle(items)
        learner.stage(ring.stagings)
        ring.progress.record(items, metrics, queue_depth=len(ring.trajectories))
        after_cycle(items)
        learner.check()


def _act_one(ring: Ring, actor_id: int) -> TrajectoryItem:
    actor = ring.actors[actor_id]
    actor.clock.restart()
    with noting(lambda: _place_of_actor(actor)):
        wanted = ring.schedule.policy_version(actor_id, actor.num_cycles)
        version, networks = ring.stagings[ring.actor_devices[actor_id]].take(wanted)
        ring.trajectories.put(actor.run_cycle(networks, version))
        return ring.trajectories.get(actor_id)


def _place_of_actor(actor: Actor) -> str:
    return f"actor {actor.actor_id}, cycle {actor.num_cycles}"


def _place_of_learner(learner: Learner) -> str:
    return f"the learner, cycle {learner.num_cycles}"
