"""Calls of one program: what the next one holds, and when it is dispatched.

The devices do not wait for Python: the next call is dispatched before a call is waited for, counted
and reported. If that ends the run, or one of its cycles is not to be counted, the next call is
thrown away. So a third state is in memory, of a run whose state is small enough.
"""

import dataclasses
import itertools
import operator
import time
from collections.abc import Sequence
from typing import Protocol

import jax
import numpy as np

from sebulba.agent import Agent
from sebulba.agent_check import num_updates_of
from sebulba.devices.memory import num_bytes
from sebulba.ring.clocks import COMPILE, METRICS, UPDATE, WallClock
from sebulba.ring.one_program import ProgramOfCycles, RecordedCycle
from sebulba.ring.records import UnrollInfo
from sebulba.ring.ring import CountedCycle, Ring
from sebulba.types import EnvStepCount, Networks, PyTree

# A call is as short as that, so that signals, checkpoints and evaluations need not wait. But a call
# also copies what it starts from, to be able to start there again, which takes a CPU up to a second
# for each GB. So calls of a large replay are longer, and the copy takes about a tenth of them.
_CALL_S = 0.25
_LONGEST_CALL_S = 5.0
_CPU_COPIES_BYTES_PER_S = 1e9
# A call is dispatched ahead if what it starts from is at most so large, since it is held a third
# time, and if the last call was at most so long, since a call ahead may be in vain. Between larger
# and longer calls, the time in which Python counts is not noticed.
_MAX_BYTES_AHEAD = 1 << 30
_MAX_S_AHEAD = 0.5

Begin = tuple[PyTree, PyTree, PyTree, EnvStepCount]
"""What a call starts from: the first arguments of `ProgramOfCycles.call`."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Call:
    """Learner cycles that were dispatched as one call; its results may still be computed."""

    program: ProgramOfCycles
    num_cycles: int
    num_updates: int  # of each of them
    begin: Begin
    end: Begin  # of the next call
    networks: Networks  # for the actors
    records: jax.Array
    begun_at: float  # in seconds


class Cycles(Protocol):
    """The learner cycles that calls are made of."""

    def begin(self) -> Begin:
        """Return what a call starts from that is not dispatched ahead."""
        ...

    def next_cycles(self, after: Call | None, most: int) -> tuple[int, int]:
        """Return the learner cycles of the next call, and the updates of each of them.

        Args:
            after: the call before it, if that is not counted yet. 0 cycles if none may follow.
            most: cycles.
        """
        ...

    def program(self, num_updates: int) -> ProgramOfCycles:
        """Return the program whose cycles have `num_updates` updates."""
        ...


class Calls:
    """Dispatches calls, one ahead of the one that is read, as long as they should take."""

    def __init__(self, *, clocks: Sequence[WallClock], begin: Begin):
        """Dispatch nothing yet.

        Args:
            clocks: those of the learners whose cycles the calls are.
            begin: what the first call starts from; its size is used.
        """
        self._clocks = tuple(clocks)
        self._is_small = num_bytes(begin) <= _MAX_BYTES_AHEAD
        self._call_s = seconds_of_call(begin)
        self._compiled: set[int] = set()  # updates of the learner cycles of programs that have run
        self._max_cycles = 1  # of the next call; adapted to the time that calls take
        self._ahead: Call | None = None  # the next call, if it has been dispatched
        self._ready_at = 0.0  # when the results of the last call were there, in seconds
        self._last_call_s = float("inf")

    def next(self, cycles: Cycles) -> tuple[Call, RecordedCycle]:
        """Wait for the next call; return it and what to record; start the call after it before."""
        call = self._ahead
        if call is None:
            num_cycles, num_updates = cycles.next_cycles(None, self._max_cycles)
            if num_updates not in self._compiled:
                # Cycles with other updates, as before a replay is filled, do not tell how long
                # these take.
                num_cycles = self._max_cycles = 1
            program = cycles.program(num_updates)
            call = self.dispatch(program, cycles.begin(), num_cycles, num_updates)
        self._ahead = self._dispatch_after(call, cycles)
        for clock in self._clocks:
            clock.begin(UPDATE)
        recorded = call.program.read(call.records, call.num_cycles)
        ready_at = time.perf_counter()
        # A call that was dispatched ahead runs from the end of the one before.
        self._last_call_s = ready_at - max(call.begun_at, self._ready_at)
        self._ready_at = ready_at
        self._adapt(self._last_call_s, call.program.capacity)
        for clock in self._clocks:
            clock.lap(UPDATE)
        return call, recorded

    def repeat(self, call: Call, num_cycles: int) -> Call:
        """Dispatch the first cycles of a call again, to have the arrays at their end."""
        return self.dispatch(call.program, call.begin, num_cycles, call.num_updates)

    def drop_ahead(self) -> None:
        """Throw the call away that has been dispatched ahead."""
        self._ahead = None

    def dispatch(
        self, program: ProgramOfCycles, begin: Begin, num_cycles: int, num_updates: int
    ) -> Call:
        """Start a call, and return without waiting for it."""
        for clock in self._clocks:
            clock.begin(UPDATE if num_updates in self._compiled else COMPILE)
        begun_at = time.perf_counter()
        *end, networks, records = program.call(*begin, np.int32(num_cycles))
        # Before the next call is dispatched, or this would wait for it.
        records = program.of_cycles(records, num_cycles)
        records.copy_to_host_async()
        self._compiled.add(num_updates)
        for clock in self._clocks:
            clock.lap(UPDATE)
        return Call(
            program=program,
            num_cycles=num_cycles,
            num_updates=num_updates,
            begin=begin,
            end=tuple(end),
            networks=networks,
            records=records,
            begun_at=begun_at,
        )

    def _dispatch_after(self, call: Call, cycles: Cycles) -> Call | None:
        """Start the call after one that is not counted yet; None: that has to wait."""
        if not self._is_small or self._last_call_s > _MAX_S_AHEAD:
            return None
        num_cycles, num_updates = cycles.next_cycles(call, self._max_cycles)
        # A compilation would keep the call from being counted.
        if num_cycles == 0 or num_updates not in self._compiled:
            return None
        return self.dispatch(cycles.program(num_updates), call.end, num_cycles, num_updates)

    def _adapt(self, seconds: float, capacity: int) -> None:
        if seconds < self._call_s / 2:
            self._max_cycles = min(2 * self._max_cycles, capacity)
        elif seconds > self._call_s:
            self._max_cycles = max(1, self._max_cycles // 2)


def seconds_of_call(begin: Begin) -> float:
    """Return how long a call should take that starts from these arrays."""
    devices = set().union(*(leaf.devices() for leaf in jax.tree.leaves(begin)))
    if any(device.platform != "cpu" for device in devices):
        return _CALL_S
    copying = num_bytes(begin) / _CPU_COPIES_BYTES_PER_S
    return min(max(_CALL_S, 10 * copying), _LONGEST_CALL_S)


def cycles_until_due(
    env_steps: int,
    *,
    uncounted: int,
    env_steps_per_cycle: int,
    total_env_steps: int,
    due_every: Sequence[int],
) -> int:
    """Return the learner cycles until something may be due at a number of env steps.

    Args:
        env_steps: that were learned from, as far as they are counted.
        uncounted: the env steps at most of learner cycles that are not counted yet. 0 cycles if
            these may end the run.
        env_steps_per_cycle: at most.
        total_env_steps: end the run.
        due_every: numbers of env steps at whose multiples something is due.
    """
    left = total_env_steps - env_steps - uncounted
    if left <= 0:
        return 0
    # If something may be due after the uncounted cycles, how far the next is is not known.
    until_due = [interval - env_steps % interval - uncounted for interval in due_every]
    return -(-max(1, min([left, *until_due])) // env_steps_per_cycle)


def with_equal_updates(agent: Agent, first: int, num_cycles: int) -> tuple[int, int]:
    """Return how many cycles in a row have the same number of updates, and that number.

    Args:
        agent: says how many updates a cycle has.
        first: the number of the first cycle.
        num_cycles: at most.
    """
    updates = [num_updates_of(agent, first + i) for i in range(num_cycles)]
    same = itertools.takewhile(lambda each: each == updates[0], updates)
    return len(list(same)), updates[0]


def count_cycles(
    ring: Ring, recorded: RecordedCycle, *, trajectories_per_actor: int
) -> list[CountedCycle]:
    """Count the learner cycles of a call, up to the goal or before the first that is irregular.

    Data or updates of an irregular cycle are not finite, or its updates changed nothing. A goal
    that a callback of the user has set during the call ends the run after the call's first cycle.

    Args:
        ring: the ring whose cycles they are.
        recorded: `[n, ...]`, of the cycles of the call.
        trajectories_per_actor: the trajectories of an actor in a learner cycle.
    """
    irregular = np.flatnonzero(~recorded.is_finite_and_learning)
    num_cycles = recorded.is_finite_and_learning.shape[0]
    num_regular = int(irregular[0]) if irregular.size else num_cycles
    counted: list[CountedCycle] = []
    while len(counted) < num_regular and not (counted and ring.end.goal):
        counted.append(_count_cycle(ring, recorded, len(counted), trajectories_per_actor))
    ring.learner.clock.lap(METRICS)
    return counted


def _count_cycle(
    ring: Ring, recorded: RecordedCycle, offset: int, trajectories_per_actor: int
) -> CountedCycle:
    """Count the learner cycle of a call that is `offset` cycles after the learner's."""
    learner = ring.learner
    cycle, num_actors = learner.num_cycles + offset, len(ring.actors)
    infos = []
    for number, of_cycles in enumerate(recorded.ended):
        round_, actor_id = divmod(number, num_actors)
        ended = jax.tree.map(operator.itemgetter(offset), of_cycles)
        sequence_number = cycle * trajectories_per_actor + round_
        version = ring.schedule.policy_version(actor_id, sequence_number)
        assert version is not None  # `reason_against` a free-running ring
        info = UnrollInfo(
            actor_id=actor_id,
            sequence_number=sequence_number,
            policy_version=version,
            env_steps=int(recorded.env_steps[number][offset]),
            num_episodes=int(recorded.num_episodes[number][offset]),
            episodes=ended.episodes,
        )
        ring.ledger.collect(actor_id, info.env_steps)
        infos.append(info)
    learner.num_non_finite_updates = int(recorded.num_discarded[offset])
    metrics = {name: values[offset] for name, values in recorded.metrics.items()}
    return ring.count(infos, [metrics] if metrics else [])
