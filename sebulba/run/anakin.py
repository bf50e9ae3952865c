"""Anakin: acting and learning in one jitted call, for environments that are JAX functions.

Hessel et al. 2021 (arXiv 2104.06272), section 2. The call is made of the functions that actors and
learner jit separately, in lock-step order, so a run gives the same numbers. It takes several
learner cycles at a time, and Python then records them one by one.

A call is speculative: it does not donate its arguments. If one of its cycles reaches the goal, the
call is repeated up to that cycle; if one has data or updates that are not finite, it is repeated up
to the cycle before, and the actors and the learner run that cycle themselves, with all their ways
to report it.
"""

import dataclasses
import functools
import itertools
import operator
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from sebulba.acting.act_cycle import ActCarry
from sebulba.acting.episodes import EpisodeStatistics, finished_episodes
from sebulba.acting.fused_cycle import FusedCycle
from sebulba.agent_check import num_updates_of, validate_sharded_state
from sebulba.devices.learner_devices import PER_DEVICE, REPLICATED
from sebulba.devices.mapping import is_jit_disabled, shard, specs_of
from sebulba.devices.memory_plan import num_bytes
from sebulba.errors import ConfigError
from sebulba.learning.loops import is_slow_in_a_loop
from sebulba.learning.update import STATE_SPECS, LearnerState, Share
from sebulba.pytree import pytree_dataclass
from sebulba.ring.timing import CHECKPOINT, COMPILE, METRICS, UPDATE
from sebulba.run.assembly import Ring
from sebulba.types import PyTree, TrajectoryItem

# A call is as short as that, so that signals, checkpoints and evaluations need not wait.
_CALL_S = 0.25
_MAX_BYTES = 64 << 20  # of the results that a call hands to Python


def reason_against(ring: Ring) -> str | None:
    """Return why acting and learning of a run cannot be one program; None: they can."""
    config = ring.config
    num_actors, per_cycle = len(ring.actors), config.learner.trajectories_per_cycle
    has_jax_environments = all(
        isinstance(actor.act_cycle, FusedCycle) and actor.resume_point.env_state is not None
        for actor in ring.actors
    )
    expectations = (
        ("learner.policy_lag", 0, config.learner.policy_lag),
        ("actor.rollout", "steps", config.actor.rollout),
        ("actor.on_env_error", "fail", config.actor.on_env_error),
        ("learner.mapping", "shard_map", config.learner.mapping),
        ("distributed: number of hosts", 1, jax.process_count()),
        ("JAX_DISABLE_JIT", False, is_jit_disabled()),
        ("env: JAX environments in a fused act cycle", True, has_jax_environments),
        ("learner.trajectories_per_cycle modulo the actors", 0, per_cycle % num_actors),
        (
            "devices.learner: the same devices as devices.actor",
            True,
            set(ring.actor_devices) == set(ring.learner.learner_devices.devices),
        ),
    )
    for what, expected, got in expectations:
        if got != expected:
            return f"{what}: expected {expected} with run.mode anakin, got {got}"
    return None


def check_mode(ring: Ring) -> None:
    """Check that acting and learning of the run can be one program, if `run.mode` is anakin.

    Raises:
        ConfigError: they cannot.
    """
    if ring.config.run.mode == "anakin" and (reason := reason_against(ring)) is not None:
        raise ConfigError(f"{reason}. Or set run.mode auto")


@pytree_dataclass
class _Recorded:
    """What Python records of a learner cycle."""

    env_steps: tuple[jax.Array, ...]  # [] int32 of each trajectory
    episodes: tuple[EpisodeStatistics, ...]  # [T, B] of each trajectory
    is_regular: jax.Array  # [] bool: finite data of the environments, and no frozen state
    num_discarded: jax.Array  # [] int32, updates of the run that were not finite
    metrics: dict[str, jax.Array]  # [num_updates]


class Anakin:
    """Runs learner cycles of a ring, including their act cycles, in calls of several cycles."""

    def __init__(self, ring: Ring):
        """Place the actors' arrays on the learner devices.

        Args:
            ring: a new or a restored one, without a `reason_against`.
        """
        self.ring = ring
        self._learner_devices = ring.learner.learner_devices
        self._programs: dict[int, Callable[..., Any]] = {}  # by updates of a learner cycle
        self._max_cycles = 1  # of the next call; adapted to the time that calls take
        for actor in ring.actors:
            validate_sharded_state(
                actor.initial_state, actor.resume_point.actor_state, self._learner_devices.devices
            )
        self.take_from_actors()

    @property
    def is_slow(self) -> bool:
        """Whether separate programs would be faster."""
        num_cycles, num_updates = self._next_cycles()
        arguments = (self.ring.learner.state, self._carries, np.int32(num_cycles))
        # A replay agent takes no updates at first.
        jaxpr = jax.make_jaxpr(self._program(max(1, num_updates)))(*arguments)
        return is_slow_in_a_loop(jaxpr, self.ring.actor_devices[0].platform)

    def take_from_actors(self) -> None:
        """Begin at the points at which the ring's actors are."""
        carries = tuple(actor.resume_point for actor in self.ring.actors)
        self._shardings = jax.tree.map(self._sharding, carries)
        self._carries = jax.device_put(carries, self._shardings)

    def give_to_actors(self) -> None:
        """Bring the ring's actors to the current point, so that they can act themselves."""
        per_actor = self._trajectories_per_actor * self.ring.learner.num_cycles
        ring = self.ring
        for actor, device, carry in zip(
            ring.actors, ring.actor_devices, self._carries, strict=True
        ):
            actor.start_at(jax.device_put(carry, device), num_cycles=per_actor)
        ring.trajectories.restore([per_actor] * len(ring.actors))

    def run_call(self, after_cycle: Callable[[Sequence[TrajectoryItem]], None]) -> bool:
        """Run one call of learner cycles.

        Args:
            after_cycle: called with the trajectories of the last of these cycles, without arrays.

        Returns:
            Whether the next cycle can be part of a call; False: data or updates of it are not
            finite, and the actors and the learner are to run it, and to report it.
        """
        ring, learner = self.ring, self.ring.learner
        num_cycles, num_updates = self._next_cycles()
        begin = (learner.state, self._carries)
        program = self._program(num_updates)
        started = time.perf_counter()
        state, carries, recorded = jax.block_until_ready(program(*begin, np.int32(num_cycles)))
        self._adapt(time.perf_counter() - started)
        learner.clock.lap(UPDATE)
        recorded = jax.device_get(recorded)
        irregular = np.flatnonzero(~recorded.is_regular[:num_cycles])
        num_regular = int(irregular[0]) if irregular.size else num_cycles
        items: list[TrajectoryItem] = []
        num_done = 0
        while num_done < num_regular and not ring.run_end.goal:
            items = self._record(jax.tree.map(lambda x, i=num_done: x[i], recorded), num_done)
            num_done += 1
        learner.clock.lap(METRICS)
        if num_done == 0:
            return False
        if num_done < num_cycles:
            state, carries, _ = program(*begin, np.int32(num_done))
        self._carries = carries
        learner.advance(state, num_cycles=num_done, num_updates=num_done * num_updates)
        learner.stage(ring.stagings)
        after_cycle(
            [dataclasses.replace(item, resume_point=carries[item.actor_id]) for item in items]
        )
        learner.clock.lap(CHECKPOINT)
        return num_done == num_cycles or ring.run_end.goal

    def _record(self, recorded: _Recorded, offset: int) -> list[TrajectoryItem]:
        """Record a learner cycle, `offset` cycles after the learner's, and return its items."""
        ring, learner = self.ring, self.ring.learner
        cycle, num_actors = learner.num_cycles + offset, len(ring.actors)
        items = []
        not_kept: Any = None
        for number, (env_steps, episodes) in enumerate(
            zip(recorded.env_steps, recorded.episodes, strict=True)
        ):
            round_, actor_id = divmod(number, num_actors)
            ring.ledger.collect(actor_id, int(env_steps))
            items.append(
                TrajectoryItem(
                    initial_state=not_kept,
                    final_state=not_kept,
                    trajectory=not_kept,
                    actor_id=actor_id,
                    sequence_number=cycle * self._trajectories_per_actor + round_,
                    policy_version=cycle,
                    env_steps=int(env_steps),
                    episodes=finished_episodes(episodes),
                )
            )
        learner.num_non_finite_updates = int(recorded.num_discarded)
        metrics = [recorded.metrics] if recorded.metrics else []
        ring.progress.record(items, metrics, queue_depth=0)
        return items

    def _next_cycles(self) -> tuple[int, int]:
        """Return the learner cycles of the next call, and the updates of each of them.

        The call ends where something is due at a number of env steps.
        """
        config, learner = self.ring.config, self.ring.learner
        env_steps = self.ring.progress.env_steps
        row = config.run.log_interval_env_steps
        intervals = (row, config.evaluation.interval_env_steps or row)
        left = min(interval - env_steps % interval for interval in intervals)
        left = min(left, config.run.total_env_steps - env_steps)
        num_cycles = min(self._max_cycles, -(-left // self._env_steps_per_cycle))
        updates = [
            num_updates_of(self.ring.agent, learner.num_cycles + i) for i in range(num_cycles)
        ]
        same = itertools.takewhile(lambda each: each == updates[0], updates)
        return len(list(same)), updates[0]

    def _adapt(self, seconds: float) -> None:
        if seconds < _CALL_S / 2:
            self._max_cycles = min(2 * self._max_cycles, self._capacity)
        elif seconds > _CALL_S:
            self._max_cycles = max(1, self._max_cycles // 2)

    @property
    def _trajectories_per_actor(self) -> int:
        """The trajectories of an actor that a learner cycle takes."""
        return self.ring.config.learner.trajectories_per_cycle // len(self.ring.actors)

    @property
    def _env_steps_per_cycle(self) -> int:
        """The most env steps of a learner cycle."""
        config = self.ring.config
        rows = config.actor.num_envs * config.actor.trajectory_length
        return rows * config.learner.trajectories_per_cycle

    def _sharding(self, leaf: Any) -> jax.sharding.NamedSharding:
        is_per_env = leaf.ndim > 0 and leaf.shape[0] == self.ring.config.actor.num_envs
        return self._learner_devices.sharding(PER_DEVICE if is_per_env else REPLICATED)

    def _program(self, num_updates: int) -> Callable[..., Any]:
        """Return the jitted call for learner cycles of so many updates, whose activity it begins.

        It takes the learner's state, the actors' carries and the number of cycles, and returns the
        state, the carries, and what is to be recorded of each cycle, `[capacity, ...]`.
        """
        clock = self.ring.learner.clock
        clock.begin(UPDATE if num_updates in self._programs else COMPILE)
        if num_updates in self._programs:
            return self._programs[num_updates]
        cycle = jax.jit(self._cycle_function(num_updates))
        shapes = jax.eval_shape(cycle, self.ring.learner.state, self._carries)[-1]
        interval = self.ring.config.run.log_interval_env_steps
        self._capacity = max(
            1, min(-(-interval // self._env_steps_per_cycle), _MAX_BYTES // num_bytes(shapes))
        )

        def program(state: PyTree, carries: PyTree, num_cycles: jax.Array) -> PyTree:
            def body(i: jax.Array, looped: PyTree) -> PyTree:
                state, carries, recorded = looped
                state, carries, new = cycle(state, carries)
                write = functools.partial(jax.lax.dynamic_update_index_in_dim, index=i, axis=0)
                return state, carries, jax.tree.map(write, recorded, new)

            recorded = jax.tree.map(
                lambda leaf: jnp.zeros((self._capacity, *leaf.shape), leaf.dtype), shapes
            )
            return jax.lax.fori_loop(0, num_cycles, body, (state, carries, recorded))

        sharding = self._learner_devices.sharding
        states = jax.tree.map(sharding, STATE_SPECS)
        self._programs[num_updates] = jax.jit(
            program, out_shardings=(states, self._shardings, sharding(REPLICATED))
        )
        return self._programs[num_updates]

    def _cycle_function(self, num_updates: int) -> Callable[..., Any]:
        """Return the function of one learner cycle: all its act cycles, then its updates."""
        ring, update = self.ring, self.ring.learner.update
        act_cycles = [
            actor.act_cycle for actor in ring.actors if isinstance(actor.act_cycle, FusedCycle)
        ]
        split_envs: Any = PartitionSpec(None, *PER_DEVICE)
        replicated: Any = REPLICATED
        shares = [
            Share(
                initial_state=specs_of(actor.initial_state),
                final_state=specs_of(actor.initial_state),
                trajectory=split_envs,
                actor_id=replicated,
            )
            for actor in ring.actors
        ] * self._trajectories_per_actor
        learn = shard(
            functools.partial(update.cycle, num_updates=num_updates),
            self._learner_devices,
            in_specs=(STATE_SPECS, tuple(shares)),
            out_specs=(STATE_SPECS, REPLICATED, REPLICATED),
        )

        def cycle(state: LearnerState, carries: tuple[ActCarry, ...]) -> PyTree:
            current, taken, results = list(carries), [], []
            networks = ring.agent.actor_networks(state.networks)
            for number in range(len(shares)):
                actor_id = number % len(act_cycles)
                before = current[actor_id]
                current[actor_id], result = act_cycles[actor_id].act_within(networks, before)
                results.append(result)
                taken.append(
                    Share(
                        initial_state=before.actor_state,
                        final_state=result.final_state,
                        trajectory=result.trajectory,
                        actor_id=jnp.int32(actor_id),
                    )
                )
            state, _, metrics = learn(state, tuple(taken))
            is_alive = state.non_finite.in_a_row < update.max_non_finite_updates
            recorded = _Recorded(
                env_steps=tuple(result.env_steps for result in results),
                episodes=tuple(result.episodes for result in results),
                is_regular=functools.reduce(
                    operator.and_, [r.is_finite for r in results], is_alive
                ),
                num_discarded=state.non_finite.total,
                metrics=metrics,
            )
            return state, tuple(current), recorded

        return cycle
