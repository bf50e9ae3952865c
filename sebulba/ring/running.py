"""The three ways to run a ring: with threads, in this thread, or as one program.

The rings of several seeds can be one program together.

With threads, the one that calls `run` supervises the others. The actors and the learner are daemon
threads. The first exception of any of them closes the deques, which ends all others.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from sebulba.envs.base import EnvironmentFault
from sebulba.errors import ALSO, ConfigError
from sebulba.ring.anakin import Anakin, reason_against
from sebulba.ring.mapped_seeds import MappedSeeds
from sebulba.ring.records import NEVER_DUE, DueTimes
from sebulba.ring.ring import Observer, Ring
from sebulba.ring.threads import Threads, WatchdogError

# A stop takes at most 10 s: saving and closing files need the rest. Only an update that is known to
# be long may take longer.
_STOP_DEADLINE_S = 7.0
_STOP_DEADLINE_OF_HANGING_S = 1.0
_LEARNER = "learner"  # the name of its thread


def check_mode(ring: Ring, mode: str) -> None:
    """Check that the ring can run in a mode.

    Raises:
        ConfigError: it cannot.
    """
    if mode == "anakin" and (reason := reason_against(ring)) is not None:
        raise ConfigError(f"{reason}. Or set run.mode auto")


def run(
    ring: Ring,
    *,
    mode: Literal["threads", "serial", "anakin", "auto"],
    observers: Sequence[Observer] = (),
    due: DueTimes = NEVER_DUE,
    compile_timeout_s: float | None = None,
) -> None:
    """Run the ring until its `end` is set, and end every thread of it.

    Args:
        ring: a new or a restored one.
        mode: `run.mode`, for which `check_mode` passes; `serial` runs everything in this thread.
        observers: are told of every learner cycle, and polled; the caller closes them.
        due: where a program of several learner cycles ends, because an observer wants to see the
            state there.
        compile_timeout_s: at its goal, the run waits so long for an actor that compiles; None: as
            long as it takes.

    Raises:
        Exception: the first of any thread, with a note that says where it happened; none of an
            environment after a signal.
        WatchdogError: a thread exceeded its limit.
        StuckError: a thread did not end in time.
    """
    try:
        ring.learner.clock.restart()
        ring.publish()
        if mode == "serial":
            while not ring.end.is_set:
                ring.learn(ring.act_in_turn(), observers)
                _poll(observers)
            return

        anakin = _anakin(ring, mode, due)

        def learn() -> None:
            if anakin is not None:
                anakin.run(observers)
                return
            while not ring.end.is_set:
                ring.learn(ring.take(), observers)

        def act(actor_id: int) -> None:
            ring.actors[actor_id].clock.restart()
            while True:  # until the deques are closed
                ring.act(actor_id)

        threads = Threads()
        failure: BaseException | None = None
        try:
            threads.start(_LEARNER, learn, ring.learner.clock)
            for actor in ring.actors if anakin is None else ():
                target = functools.partial(act, actor.actor_id)
                threads.start(f"actor {actor.actor_id}", target, actor.clock)
            threads.wait(_LEARNER, ring.end, lambda: _poll(observers))
        except BaseException as error:
            failure = error
        ring.close()

        def may_compile(seconds: float) -> bool:
            """Whether an actor may continue: the run has reached its goal and is to be saved."""
            is_in_time = compile_timeout_s is None or seconds <= compile_timeout_s
            return ring.end.goal and not ring.end.is_interrupted and is_in_time

        is_hanging = isinstance(failure, WatchdogError)
        deadline_s = _STOP_DEADLINE_OF_HANGING_S if is_hanging else _STOP_DEADLINE_S
        stuck = threads.join(deadline_s, may_compile=may_compile)
        if failure is None and not ring.end.goal:
            failure = threads.late_error()
        if stuck is not None:
            ring.end.is_stuck = True
            ring.end.is_learner_stuck = _LEARNER in stuck.threads
            if failure is not None:
                failure.add_note(f"{ALSO} {stuck}.")
        failure = failure or stuck
        if failure is not None:
            raise failure
    except EnvironmentFault:
        # Slurm and systemd signal all processes of a run, also those of its environments.
        if ring.end.signal is None:
            raise
    finally:
        ring.close()
        ring.ledger.discard_in_flight()


def run_mapped(
    rings: Sequence[Ring],
    *,
    observers: Sequence[Sequence[Observer]],
    due: DueTimes,
    on_end: Callable[[int], None],
) -> None:
    """Run the rings of several seeds as one program until the `end` of each is set; never raises.

    A ring at another learner cycle than the first that has not ended, as after a resume, and one
    with a cycle that the program cannot take, is run alone after the others, as one program.

    Args:
        rings: new or restored ones, for each of which `check_mapping` passes.
        observers: those of each ring; the caller closes them.
        due: as of `run`.
        on_end: called in this thread with the number of each ring, once it has ended and nothing
            else uses it.
    """
    waiting = list(range(len(rings)))  # numbers of the rings that have not ended

    def end_ring(number: int) -> None:
        waiting.remove(number)
        rings[number].close()
        rings[number].ledger.discard_in_flight()
        on_end(number)

    is_running = [not ring.end.is_set for ring in rings]
    cycles = [ring.learner.num_cycles for ring in rings]
    first = cycles[is_running.index(True)] if any(is_running) else 0
    together = [n for n in waiting if is_running[n] and cycles[n] == first]
    if len(together) > 1:
        _run_together(
            {number: rings[number] for number in together},
            observers={number: observers[number] for number in together},
            due=due,
            on_left=lambda number: end_ring(number) if rings[number].end.is_set else None,
        )
    for number in tuple(waiting):
        ring = rings[number]
        if not ring.end.is_set:
            with ring.end.collecting():
                run(
                    ring,
                    mode="anakin",
                    observers=observers[number],
                    due=due,
                )
        end_ring(number)


def _run_together(
    rings: Mapping[int, Ring],
    *,
    observers: Mapping[int, Sequence[Observer]],
    due: DueTimes,
    on_left: Callable[[int], None],
) -> None:
    """Run rings as one program until all have left it; a failure is recorded in their ends.

    Args:
        rings: by their numbers.
        observers: by the numbers of the rings.
        due: as of `run`.
        on_left: called in this thread with the number of each ring that has left.
    """
    numbers, threads, left = tuple(rings), Threads(), set[int]()
    ends = [ring.end for ring in rings.values()]
    failure: BaseException | None = None
    try:
        seeds = MappedSeeds(tuple(rings.values()), due)

        def poll() -> None:
            for slot, number in enumerate(numbers):
                if slot not in seeds.running:
                    if number not in left:
                        left.add(number)
                        on_left(number)
                elif not rings[number].end.is_set:
                    try:
                        _poll(observers[number])
                    except WatchdogError:  # They all wait for the same call.
                        raise
                    except BaseException as error:
                        rings[number].end.fail(error)

        for ring in rings.values():
            ring.learner.clock.restart()
        learner = functools.partial(seeds.run, tuple(observers.values()))
        threads.start(_LEARNER, learner, rings[numbers[0]].learner.clock)
        threads.wait(_LEARNER, ends[0], poll)
    except BaseException as error:
        failure = error
    is_hanging = isinstance(failure, WatchdogError)
    stuck = threads.join(_STOP_DEADLINE_OF_HANGING_S if is_hanging else _STOP_DEADLINE_S)
    failure = failure or threads.late_error() or stuck
    for number, end in zip(numbers, ends, strict=True):
        if number not in left:
            end.is_stuck = end.is_learner_stuck = stuck is not None
            if failure is not None and not end.goal:
                end.fail(failure)


def _poll(observers: Sequence[Observer]) -> None:
    """Let every observer work outside the learner's thread."""
    for observer in observers:
        observer.on_poll()


def _anakin(
    ring: Ring,
    mode: str,
    due: DueTimes,
) -> Anakin | None:
    """Return the program of acting and learning; None: the run has threads for them."""
    if mode == "threads" or (mode == "auto" and reason_against(ring) is not None):
        return None
    anakin = Anakin(ring, due)
    return None if mode == "auto" and anakin.is_slow() else anakin
