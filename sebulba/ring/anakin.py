"""Anakin: acting and learning in one jitted call, for environments that are JAX functions.

Hessel et al. 2021 (arXiv 2104.06272), section 2. The call is made of the functions that actors and
learner jit separately, so a run gives the same numbers as with threads and the same policy lag: the
networks of the last `policy_lag` learner cycles are part of what it carries. It takes several
learner cycles at a time, and Python then records them one by one.

A call is speculative: it does not donate its arguments. If one of its cycles reaches the goal, the
call is repeated up to that cycle; if one has data or updates that are not finite, it is repeated up
to the cycle before, and the actors and the learner run that cycle themselves, with all their ways
to report it.

The devices do not wait for Python: the next call is dispatched before a call is waited for, counted
and reported. If that ends the run, or one of its cycles is not to be counted, the next call is
thrown away. So a third state is in memory, of a run whose state is small enough.
"""

import dataclasses
import itertools
import operator
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from sebulba.agent_check import num_updates_of, validate_sharded_state
from sebulba.devices.learner_devices import REPLICATED
from sebulba.devices.mapping import is_jit_disabled
from sebulba.devices.memory import num_bytes
from sebulba.devices.xla_workarounds import is_slow_in_a_loop
from sebulba.ring.clocks import COMPILE, METRICS, UPDATE
from sebulba.ring.collectors import LocalCollector
from sebulba.ring.one_program import (
    ProgramOfCycles,
    RecordedCycle,
    carry_shardings,
    program_of_cycles,
)
from sebulba.ring.records import Point, UnrollInfo
from sebulba.ring.ring import CountedCycle, Observer, Ring, annotate_errors, where_learner
from sebulba.types import EnvStepCount, Networks, PyTree

# A call is as short as that, so that signals, checkpoints and evaluations need not wait.
_CALL_S = 0.25
# A call is dispatched ahead if what it starts from is at most so large, since it is held a third
# time, and if the last call was at most so long, since a call ahead may be in vain. Between larger
# and longer calls, the time in which Python counts is not noticed.
_MAX_BYTES_AHEAD = 1 << 30
_MAX_S_AHEAD = 0.5


def reason_against(ring: Ring) -> str | None:
    """Return why acting and learning of a run cannot be one program; None: they can."""
    if num_remote := sum(not isinstance(actor.collector, LocalCollector) for actor in ring.actors):
        return f"run.mode: anakin needs actor.remote: 0, got {num_remote}: one program acts itself"
    return reason_against_one_program(
        policy_lag=ring.schedule.policy_lag,
        has_whole_episodes=any(
            isinstance(actor.collector, LocalCollector) and actor.collector.acts_whole_episodes
            for actor in ring.actors
        ),
        may_restart=any(actor.max_restarts for actor in ring.actors),
        mapping=ring.learner.programs.mapping_name,
        num_hosts=jax.process_count(),
        has_jax_environments=all(
            isinstance(actor.collector, LocalCollector)
            and actor.collector.act_within is not None
            and actor.point.carry.env_state is not None
            for actor in ring.actors
        ),
        trajectories_per_cycle=ring.schedule.trajectories_per_cycle,
        actor_devices=[actor.device for actor in ring.actors],
        learner_devices=ring.learner.learner_devices.devices,
    )


def reason_against_one_program(
    *,
    policy_lag: int | None,
    has_whole_episodes: bool,
    may_restart: bool,
    mapping: str,
    num_hosts: int,
    has_jax_environments: bool,
    trajectories_per_cycle: int,
    actor_devices: Sequence[jax.Device],
    learner_devices: Sequence[jax.Device],
) -> str | None:
    """Return why acting and learning cannot be one program; None: they can.

    Args:
        policy_lag: `learner.policy_lag`.
        has_whole_episodes: whether a trajectory is a complete episode of each environment.
        may_restart: whether environments are recreated after a fault.
        mapping: `learner.mapping`.
        num_hosts: hosts of the run.
        has_jax_environments: whether all environments are JAX functions, stepped inside `jit`.
        trajectories_per_cycle: `learner.trajectories_per_cycle`.
        actor_devices: the device of each actor.
        learner_devices: this host's learner devices.
    """
    expectations = (
        ("learner.policy_lag", "a number", "null" if policy_lag is None else "a number"),
        ("actor.rollout", "steps", "episodes" if has_whole_episodes else "steps"),
        ("actor.on_env_error", "fail", "restart" if may_restart else "fail"),
        ("learner.mapping", "shard_map", mapping),
        ("distributed: number of hosts", 1, num_hosts),
        ("JAX_DISABLE_JIT", False, is_jit_disabled()),
        ("env: JAX environments in a fused act cycle", True, has_jax_environments),
        (
            "learner.trajectories_per_cycle modulo the actors",
            0,
            trajectories_per_cycle % len(actor_devices),
        ),
        (
            "devices.learner: the same devices as devices.actor",
            True,
            set(actor_devices) == set(learner_devices),
        ),
    )
    for what, expected, got in expectations:
        if got != expected:
            return f"{what}: expected {expected} with run.mode anakin, got {got}"
    return None


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _Call:
    """Learner cycles that were dispatched as one call; its results may still be computed."""

    program: ProgramOfCycles
    num_cycles: int
    num_updates: int  # of each of them
    begin: tuple[PyTree, PyTree, PyTree, EnvStepCount]  # the first arguments of the program
    end: tuple[PyTree, PyTree, PyTree, EnvStepCount]  # those of the next call
    networks: Networks  # for the actors
    records: jax.Array
    begun_at: float  # in seconds


class Anakin:
    """Runs learner cycles of a ring, including their act cycles, in calls of several cycles."""

    def __init__(self, ring: Ring, boundaries: Sequence[int] = ()):
        """Place the actors' arrays on the learner devices.

        Args:
            ring: a new or a restored one, without a `reason_against`.
            boundaries: numbers of env steps at whose multiples a call ends.
        """
        self.ring = ring
        first = ring.actors[0].collector
        assert isinstance(first, LocalCollector)  # `reason_against` others
        self._run_spec = first.functions.run_spec
        self._boundaries = tuple(boundaries) or (self._run_spec.total_env_steps,)
        # The trajectories of an actor that a learner cycle takes.
        self._trajectories_per_actor = ring.schedule.trajectories_per_cycle // len(ring.actors)
        rows = self._run_spec.num_streams * self._run_spec.trajectory_length
        # At most: transitions out of final observations do not count.
        self._env_steps_per_cycle = rows * ring.schedule.trajectories_per_cycle
        self._learner_devices = ring.learner.learner_devices
        self._compiled: set[int] = set()  # updates of the learner cycles of programs that have run
        self._max_cycles = 1  # of the next call; adapted to the time that calls take
        self._ahead: _Call | None = None  # the next call, if it has been dispatched
        self._ready_at = 0.0  # when the results of the last call were there, in seconds
        self._last_call_s = float("inf")
        for actor in ring.actors:
            validate_sharded_state(
                actor.placed_state, actor.point.carry.actor_state, self._learner_devices.devices
            )
        self._take_from_actors()
        self._is_small = num_bytes(self._begin()) <= _MAX_BYTES_AHEAD

    def is_slow(self) -> bool:
        """Whether separate programs would be faster; traces the program."""
        num_cycles, num_updates = self._next_cycles()
        arguments = (*self._begin(), np.int32(num_cycles))
        # A replay agent takes no updates at first.
        jaxpr = jax.make_jaxpr(self._program(max(1, num_updates)).call)(*arguments)
        return is_slow_in_a_loop(jaxpr, self._learner_devices.devices[0].platform)

    def run(self, observers: Sequence[Observer] = ()) -> None:
        """Run learner cycles, several in each call, until the run's end is set.

        Raises:
            NonFiniteError: too many updates in a row were not finite.
            EnvironmentFault: the environments returned data that are not finite.
        """
        ring = self.ring
        while not ring.end.is_set:
            with annotate_errors(lambda: where_learner(ring.learner)):
                is_usable = self._run_call(observers)
            if not is_usable:
                self._give_to_actors()
                ring.learn(ring.act_in_turn(), observers)
                self._take_from_actors()
        self._ahead = None

    def _take_from_actors(self) -> None:
        """Begin at the points at which the ring's actors are, with the networks that they have."""
        carries = tuple(actor.point.carry for actor in self.ring.actors)
        self._shardings = carry_shardings(carries, self._learner_devices, run_spec=self._run_spec)
        self._carries = jax.device_put(carries, self._shardings)
        replicated = self._learner_devices.sharding(REPLICATED)
        self._older = jax.device_put(tuple(self.ring.older_networks()), replicated)

    def _give_to_actors(self) -> None:
        """Bring the ring's actors to the current point, so that they can act themselves."""
        ring = self.ring
        num_cycles = self._trajectories_per_actor * ring.learner.num_cycles
        for actor, carry in zip(ring.actors, self._carries, strict=True):
            carry = jax.device_put(carry, actor.device)
            actor.continue_at(Point(cycle=num_cycles, carry=carry))
        ring.trajectories.restore([num_cycles] * len(ring.actors))

    def _begin(self) -> tuple[PyTree, PyTree, PyTree, EnvStepCount]:
        """Return what the next call starts from: the first arguments of `program_of_cycles`."""
        ring = self.ring
        # Placed as the results of a call are: otherwise the next call would compile again.
        env_steps = self._learner_devices.replicate(EnvStepCount.of(ring.progress.env_steps))
        return ring.learner.state, self._older, self._carries, env_steps

    def _dispatch(
        self, begin: tuple[PyTree, PyTree, PyTree, EnvStepCount], num_cycles: int, num_updates: int
    ) -> _Call:
        """Start a call, and return without waiting for it."""
        clock, program = self.ring.learner.clock, self._program(num_updates)
        clock.begin(UPDATE if num_updates in self._compiled else COMPILE)
        begun_at = time.perf_counter()
        *end, networks, records = program.call(*begin, np.int32(num_cycles))
        # Before the next call is dispatched, or this would wait for it.
        records = program.of_cycles(records, num_cycles)
        records.copy_to_host_async()
        self._compiled.add(num_updates)
        clock.lap(UPDATE)
        return _Call(
            program=program,
            num_cycles=num_cycles,
            num_updates=num_updates,
            begin=begin,
            end=tuple(end),
            networks=networks,
            records=records,
            begun_at=begun_at,
        )

    def _dispatch_after(self, call: _Call) -> _Call | None:
        """Start the call after one that is not counted yet; None: that has to wait."""
        if not self._is_small or self._last_call_s > _MAX_S_AHEAD:
            return None
        num_cycles, num_updates = self._next_cycles(after=call)
        # A compilation would keep the call from being counted.
        if num_cycles == 0 or num_updates not in self._compiled:
            return None
        return self._dispatch(call.end, num_cycles, num_updates)

    def _run_call(self, observers: Sequence[Observer]) -> bool:
        """Wait for a call of learner cycles, and count and report them; start the next call before.

        Returns:
            Whether the next cycle can be part of a call; False: data or updates of it are not
            finite, and the actors and the learner are to run it, and to report it.
        """
        ring, learner = self.ring, self.ring.learner
        call = self._ahead or self._dispatch(self._begin(), *self._next_cycles())
        self._ahead = self._dispatch_after(call)
        learner.clock.begin(UPDATE)
        recorded = call.program.read(call.records, call.num_cycles)
        ready_at = time.perf_counter()
        # A call that was dispatched ahead runs from the end of the one before.
        self._last_call_s = ready_at - max(call.begun_at, self._ready_at)
        self._ready_at = ready_at
        self._adapt(self._last_call_s)
        learner.clock.lap(UPDATE)
        unusable = np.flatnonzero(~recorded.is_finite_and_learning)
        num_usable = int(unusable[0]) if unusable.size else call.num_cycles
        ring.is_between_cycles = False
        counted: list[CountedCycle] = []
        while len(counted) < num_usable and not ring.end.goal:
            counted.append(self._count(recorded, len(counted)))
        num_done, is_complete = len(counted), len(counted) == call.num_cycles
        learner.clock.lap(METRICS)
        if not is_complete:
            self._ahead = None
        if num_done == 0:
            ring.is_between_cycles = True
            return False
        if not is_complete:
            call = self._dispatch(call.begin, num_done, call.num_updates)
        state, self._older, self._carries, _ = call.end
        learner.advance(
            state, call.networks, num_cycles=num_done, num_updates=num_done * call.num_updates
        )
        ring.stage_older(self._older)
        ring.publish()
        cycles_of_actor = self._trajectories_per_actor * learner.num_cycles
        ring.points = [Point(cycle=cycles_of_actor, carry=carry) for carry in self._carries]
        ring.is_between_cycles = True
        ring.report(counted, observers)
        return is_complete or ring.end.goal

    def _count(self, recorded: RecordedCycle, offset: int) -> CountedCycle:
        """Count the learner cycle of a call that is `offset` cycles after the learner's."""
        ring, learner = self.ring, self.ring.learner
        cycle, num_actors = learner.num_cycles + offset, len(ring.actors)
        infos = []
        for number, of_cycles in enumerate(recorded.ended):
            round_, actor_id = divmod(number, num_actors)
            ended = jax.tree.map(operator.itemgetter(offset), of_cycles)
            sequence_number = cycle * self._trajectories_per_actor + round_
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

    def _next_cycles(self, after: _Call | None = None) -> tuple[int, int]:
        """Return the learner cycles of the next call, and the updates of each of them.

        The call ends with the first cycle at which something is due at a number of env steps.

        Args:
            after: the call before it, if that is not counted yet. 0 cycles if it may end the run.
        """
        learner, env_steps = self.ring.learner, self.ring.progress.env_steps
        before = 0 if after is None else after.num_cycles
        uncounted = before * self._env_steps_per_cycle
        left = self._run_spec.total_env_steps - env_steps - uncounted
        if left <= 0:
            return 0, 0
        # If something may be due after the uncounted cycles, how far the next is is not known.
        of_boundaries = [
            boundary - env_steps % boundary - uncounted for boundary in self._boundaries
        ]
        left = max(1, min(left, *of_boundaries))
        num_cycles = min(self._max_cycles, -(-left // self._env_steps_per_cycle))
        first = learner.num_cycles + before
        updates = [num_updates_of(learner.programs.agent, first + i) for i in range(num_cycles)]
        same = itertools.takewhile(lambda each: each == updates[0], updates)
        return len(list(same)), updates[0]

    def _adapt(self, seconds: float) -> None:
        if seconds < _CALL_S / 2:
            self._max_cycles = min(2 * self._max_cycles, self._capacity)
        elif seconds > _CALL_S:
            self._max_cycles = max(1, self._max_cycles // 2)

    def _program(self, num_updates: int) -> ProgramOfCycles:
        """Return the `program_of_cycles` of so many updates, maybe of an earlier ring."""
        ring, made = self.ring, self.ring.learner.programs.of_cycles
        # `reason_against` a collector that has none.
        act_cycles: Any = tuple(
            actor.collector.act_within
            for actor in ring.actors
            if isinstance(actor.collector, LocalCollector)
        )
        if num_updates in made and made[num_updates][0] == act_cycles:
            _, program = made[num_updates]
            self._capacity = program.capacity
            return program
        program = program_of_cycles(
            self._begin(),
            ring.learner.programs,
            act_cycles=act_cycles,
            placed_states=[actor.placed_state for actor in ring.actors],
            num_rounds=self._trajectories_per_actor,
            num_updates=num_updates,
            max_cycles=-(-min(self._boundaries) // self._env_steps_per_cycle),
            shardings=self._shardings,
        )
        made[num_updates] = act_cycles, program
        self._capacity = program.capacity
        return program
