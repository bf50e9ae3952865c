"""Anakin: acting and learning in one jitted call, for environments that are JAX functions.

Hessel et al. 2021 (arXiv 2104.06272), section 2. The call is made of the functions that actors and
learner jit separately, so a run gives the same numbers as with threads and the same policy lag: the
networks of the last `policy_lag` learner cycles are part of what it carries. It takes several
learner cycles at a time, and Python then records them one by one.

A call is speculative: it does not donate its arguments. If one of its cycles reaches the goal, the
call is repeated up to that cycle; if one has data or updates that are not finite, it is repeated up
to the cycle before, and the actors and the learner run that cycle themselves, with all their ways
to report it.
"""

from collections.abc import Sequence

import jax
import numpy as np

from sebulba.agent_check import validate_sharded_state
from sebulba.devices.learner_devices import REPLICATED
from sebulba.devices.mapping import is_jit_disabled
from sebulba.devices.xla_workarounds import is_slow_in_a_loop
from sebulba.ring.calls import (
    Begin,
    Call,
    Calls,
    count_cycles,
    cycles_until_due,
    with_equal_updates,
)
from sebulba.ring.local_collector import LocalCollector
from sebulba.ring.one_program import (
    ActWithin,
    ProgramOfCycles,
    RecordedCycle,
    carry_shardings,
    program_of_cycles,
)
from sebulba.ring.records import NEVER_DUE, DueTimes, Point
from sebulba.ring.ring import CountedCycle, Observer, Ring, annotate_errors, where_learner
from sebulba.types import EnvStepCount, Networks


def reason_against(ring: Ring) -> str | None:
    """Return why acting and learning of a run cannot be one program; None: they can."""
    collectors = _local_collectors_of(ring)
    if num_remote := len(ring.actors) - len(collectors):
        return f"run.mode: anakin needs actor.remote: 0, got {num_remote}: one program acts itself"
    return reason_against_one_program(
        policy_lag=ring.schedule.policy_lag,
        has_whole_episodes=any(collector.acts_whole_episodes for collector in collectors),
        may_restart=any(actor.max_restarts for actor in ring.actors),
        mapping=ring.learner.programs.mapping_name,
        num_hosts=jax.process_count(),
        has_jax_environments=all(
            collector.act_within is not None and actor.point.carry.env_state is not None
            for actor, collector in zip(ring.actors, collectors, strict=True)
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
    num_actors = len(actor_devices)
    are_shared = set(actor_devices) == set(learner_devices)
    expectations = (
        ("learner.policy_lag", policy_lag is not None, "a number", "null"),
        ("actor.rollout", not has_whole_episodes, "steps", "episodes"),
        ("actor.on_env_error", not may_restart, "fail", "restart"),
        ("learner.mapping", mapping == "shard_map", "shard_map", mapping),
        ("distributed", num_hosts == 1, "one host", num_hosts),
        ("JAX_DISABLE_JIT", not is_jit_disabled(), False, True),
        ("env.suite", has_jax_environments, "JAX environments in a fused act cycle", "others"),
        (
            "learner.trajectories_per_cycle",
            trajectories_per_cycle % num_actors == 0,
            f"a multiple of the {num_actors} actors",
            trajectories_per_cycle,
        ),
        (
            "devices.learner",
            are_shared,
            f"the devices of devices.actor ({_names_of(actor_devices)})",
            _names_of(learner_devices),
        ),
    )
    for key, is_met, expected, got in expectations:
        if not is_met:
            return f"{key}: expected {expected} with run.mode anakin, got {got}"
    return None


def _names_of(devices: Sequence[jax.Device]) -> str:
    return ", ".join(sorted({f"{device.platform} {device.id}" for device in devices}))


def act_cycles_of(ring: Ring) -> tuple[ActWithin, ...]:
    """Return the act cycle of each actor that has one to call inside `jit`."""
    act_cycles = (collector.act_within for collector in _local_collectors_of(ring))
    return tuple(each for each in act_cycles if each is not None)


def _local_collectors_of(ring: Ring) -> list[LocalCollector]:
    """Return the collectors of this process, which are all if nothing is a `reason_against`."""
    collectors = [actor.collector for actor in ring.actors]
    return [collector for collector in collectors if isinstance(collector, LocalCollector)]


class Anakin:
    """Runs learner cycles of a ring, including their act cycles, in calls of several cycles."""

    def __init__(self, ring: Ring, due: DueTimes = NEVER_DUE):
        """Place the actors' arrays on the learner devices.

        Args:
            ring: a new or a restored one, without a `reason_against`.
            due: where a call ends.
        """
        self.ring = ring
        first = ring.actors[0].collector
        assert isinstance(first, LocalCollector)  # `reason_against` others
        self._run_spec = first.functions.run_spec
        self._due = due
        # The trajectories of an actor that a learner cycle takes.
        self._trajectories_per_actor = ring.schedule.trajectories_per_cycle // len(ring.actors)
        rows = self._run_spec.num_streams * self._run_spec.trajectory_length
        # At most: transitions out of final observations do not count.
        self._env_steps_per_cycle = rows * ring.schedule.trajectories_per_cycle
        self._learner_devices = ring.learner.learner_devices
        self._act_cycles = act_cycles_of(ring)
        for actor in ring.actors:
            validate_sharded_state(
                actor.placed_state, actor.point.carry.actor_state, self._learner_devices.devices
            )
        self._take_from_actors()
        self._calls = Calls(clocks=[ring.learner.clock], begin=self.begin())

    def is_slow(self) -> bool:
        """Whether separate programs would be faster; traces the program."""
        num_cycles, num_updates = self.next_cycles(None, 1)
        arguments = (*self.begin(), np.int32(num_cycles))
        # A replay agent takes no updates at first.
        jaxpr = jax.make_jaxpr(self.program(max(1, num_updates)).call)(*arguments)
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
                is_usable = self.run_call(observers)
            if not is_usable:
                self.give_to_actors()
                ring.learn(ring.act_in_turn(), observers)
                self._take_from_actors()
        self._calls.drop_ahead()

    def _take_from_actors(self) -> None:
        """Begin at the points at which the ring's actors are, with the networks that they have."""
        carries = tuple(actor.point.carry for actor in self.ring.actors)
        self.shardings = carry_shardings(carries, self._learner_devices, run_spec=self._run_spec)
        self._carries = jax.device_put(carries, self.shardings)
        replicated = self._learner_devices.sharding(REPLICATED)
        self._older = jax.device_put(tuple(self.ring.older_networks()), replicated)

    def give_to_actors(self) -> None:
        """Bring the ring's actors to the current point, so that they can act themselves."""
        ring = self.ring
        num_cycles = self._trajectories_per_actor * ring.learner.num_cycles
        for actor, carry in zip(ring.actors, self._carries, strict=True):
            carry = jax.device_put(carry, actor.device)
            actor.continue_at(Point(cycle=num_cycles, carry=carry))
        ring.trajectories.restore([num_cycles] * len(ring.actors))

    def begin(self) -> Begin:
        """Return what the next call starts from."""
        ring = self.ring
        # Placed as the results of a call are: otherwise the next call would compile again.
        env_steps = self._learner_devices.replicate(EnvStepCount.of(ring.progress.env_steps))
        return ring.learner.state, self._older, self._carries, env_steps

    def run_call(self, observers: Sequence[Observer]) -> bool:
        """Wait for a call of learner cycles, and count and report them.

        Returns:
            Whether the next cycle can be part of a call; False: data or updates of it are not
            finite, and the actors and the learner are to run it, and to report it.
        """
        ring, learner = self.ring, self.ring.learner
        call, recorded = self._calls.next(self)
        with ring.in_cycle():
            counted = self.count(recorded)
            num_done, is_complete = len(counted), len(counted) == call.num_cycles
            if not is_complete:
                self._calls.drop_ahead()
            if num_done == 0:
                return False
            if not is_complete:
                call = self._calls.repeat(call, num_done)
            learner.advance(num_cycles=num_done, num_updates=num_done * call.num_updates)
            self.arrive(call.end, call.networks)
            ring.publish()
        ring.report(counted, observers)
        return is_complete or ring.end.goal

    def count(self, recorded: RecordedCycle) -> list[CountedCycle]:
        """Count the cycles `[n, ...]` of a call; see `count_cycles`."""
        return count_cycles(
            self.ring, recorded, trajectories_per_actor=self._trajectories_per_actor
        )

    def arrive(self, end: Begin, networks: Networks) -> None:
        """Bring the ring to the end of a call whose cycles the learner has been advanced by."""
        learner = self.ring.learner
        learner.state, self._older, self._carries, _ = end
        learner.published = networks
        self.ring.stage_older(self._older)
        cycles_of_actor = self._trajectories_per_actor * learner.num_cycles
        self.ring.points = [Point(cycle=cycles_of_actor, carry=carry) for carry in self._carries]

    def cycles_until_due(self, after: Call | None = None) -> int:
        """Return the cycles until something may be due.

        Args:
            after: a call that is not counted yet. 0 cycles if it may end the run, or if something
                is due before the next call.
        """
        before = 0 if after is None else after.num_cycles
        num_cycles = cycles_until_due(
            self.ring.progress.env_steps,
            uncounted=before * self._env_steps_per_cycle,
            env_steps_per_cycle=self._env_steps_per_cycle,
            total_env_steps=self._run_spec.total_env_steps,
            due_every=self._due.every_env_steps,
        )
        first = self.ring.learner.num_cycles + before
        if after is not None and first in self._due.before_cycles:
            return 0
        due = [cycle for cycle in self._due.before_cycles if cycle > first]
        if self._due.next_cycle is not None:
            due.append(self._due.next_cycle(first))
        return min([num_cycles, *(cycle - first for cycle in due)])

    def next_cycles(self, after: Call | None, most: int) -> tuple[int, int]:
        """Return the learner cycles of the next call, and the updates of each; see `Calls`.

        The call ends with the first cycle at which something is due.
        """
        learner, left = self.ring.learner, self.cycles_until_due(after)
        if left == 0:
            return 0, 0
        first = learner.num_cycles + (0 if after is None else after.num_cycles)
        return with_equal_updates(learner.programs.agent, first, min(most, left))

    def program(self, num_updates: int, begin_of_seeds: Begin | None = None) -> ProgramOfCycles:
        """Return the `program_of_cycles` with this many updates, maybe of an earlier ring.

        Args:
            num_updates: the updates of a learner cycle.
            begin_of_seeds: what its calls start from if they are mapped over seeds; None: they are
                this ring's.
        """
        ring, made = self.ring, self.ring.learner.programs.of_cycles
        most = min(self._due.every_env_steps, default=self._run_spec.total_env_steps)
        key = (num_updates, begin_of_seeds is not None)
        if key in made and made[key][0] == self._act_cycles:
            return made[key][1]
        program = program_of_cycles(
            begin_of_seeds or self.begin(),
            ring.learner.programs.device_update,
            ring.learner.learner_devices,
            act_cycles=self._act_cycles,
            placed_states=[actor.placed_state for actor in ring.actors],
            num_rounds=self._trajectories_per_actor,
            num_updates=num_updates,
            max_cycles=-(-most // self._env_steps_per_cycle),
            shardings=self.shardings,
            is_mapped=begin_of_seeds is not None,
        )
        made[key] = self._act_cycles, program
        return program
