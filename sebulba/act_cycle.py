"""One act cycle: `T` env steps of `B` environments, as one trajectory.

Two implementations of one interface give the same trajectories:

- *fused*: the whole cycle is one jitted `lax.scan` with the environment inside it;
- *stepped*: one jitted call an env step, for environments that only Python can step.

Both donate the actor state and the trajectory's buffer, which is written in place row by row.
"""

import dataclasses
from collections.abc import Callable
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np

from sebulba.agent import Agent
from sebulba.envs.base import Environment, FusedEnvironment
from sebulba.episodes import EpisodeStatistics, init_statistics, update_statistics
from sebulba.pytree import pytree_dataclass
from sebulba.timing import ACT, ENVIRONMENT, INFERENCE, WallClock
from sebulba.types import ActorState, EnvStep, Networks, PyTree, Trajectory


@pytree_dataclass
class ActCarry:
    """What goes from one act cycle to the next."""

    actor_state: ActorState  # before `env_step`; donated, as nothing else here is
    env_step: EnvStep  # [B], the row that the next cycle begins with
    statistics: EpisodeStatistics  # [B], as of the row before `env_step`
    env_state: PyTree = None  # where the environment stands, if that is all there is to it


@pytree_dataclass
class CycleResult:
    """What an act cycle gives. Nothing in it is ever donated or written to again."""

    final_state: ActorState  # after row T - 1
    trajectory: Trajectory
    episodes: EpisodeStatistics  # [T, B], as of rows 0 … T - 1
    env_steps: jax.Array  # [] int32, valid transitions


class ActCycle(Protocol):
    """Runs act cycles of one actor."""

    def __call__(self, networks: Networks, carry: ActCarry) -> tuple[ActCarry, CycleResult]:
        """Acts `T` steps; `carry.actor_state` is donated."""
        ...


@pytree_dataclass
class _Buffer:
    """The rows written so far; donated from step to step."""

    trajectory: Trajectory
    episodes: EpisodeStatistics  # [T, B]


def init_carry(
    agent: Agent,
    networks: Networks,
    env_step: EnvStep,
    *,
    key: jax.Array,
    actor_id: int,
    device: jax.Device,
) -> ActCarry:
    """Returns the carry of an actor's first cycle, on the actor's device.

    Args:
        agent: the algorithm.
        networks: on `device`.
        env_step: `[B]`, what `reset` gave; stays in host memory.
        key: the actor's own, consumed.
        actor_id: as `Agent.init_actor_state` takes it.
        device: the actor's.
    """
    num_envs = env_step.reward.shape[0]

    def init(networks: Networks, key: jax.Array) -> tuple[ActorState, EpisodeStatistics]:
        actor_state = agent.init_actor_state(networks, num_envs, key, actor_id)
        return actor_state, init_statistics(num_envs)

    # Committed to the device, like everything that later cycles give: otherwise the second cycle
    # would be compiled again.
    sharding = jax.sharding.SingleDeviceSharding(device)
    key = jax.device_put(key, device)
    actor_state, statistics = jax.jit(init, out_shardings=sharding)(networks, key)
    return ActCarry(actor_state=actor_state, env_step=env_step, statistics=statistics)


def _act(
    agent: Agent, networks: Networks, carry: ActCarry, buffer: _Buffer, t: jax.Array
) -> tuple[PyTree, ActorState, EpisodeStatistics, _Buffer]:
    """Acts from row `t` and writes everything of that row into the buffer."""
    action, extras, actor_state = agent.act(
        networks, carry.actor_state, carry.env_step, greedy=False
    )
    statistics = update_statistics(carry.statistics, carry.env_step)
    buffer = _Buffer(
        trajectory=Trajectory(
            env_steps=_write_row(buffer.trajectory.env_steps, carry.env_step, t),
            action=_write_row(buffer.trajectory.action, action, t),
            extras=_write_row(buffer.trajectory.extras, extras, t),
        ),
        episodes=_write_row(buffer.episodes, statistics, t),
    )
    return action, actor_state, statistics, buffer


def _finish(buffer: _Buffer, actor_state: ActorState, last: EnvStep) -> CycleResult:
    """Writes row `T` and sums the cycle up."""
    trajectory = buffer.trajectory
    length = trajectory.env_steps.reward.shape[0] - 1
    env_steps = _write_row(trajectory.env_steps, last, length)
    trajectory = Trajectory(env_steps=env_steps, action=trajectory.action, extras=trajectory.extras)
    return CycleResult(
        # A copy: the next cycle donates `actor_state`.
        final_state=jax.tree.map(jnp.copy, actor_state),
        trajectory=trajectory,
        episodes=buffer.episodes,
        env_steps=jnp.sum(trajectory.valid, dtype=jnp.int32),
    )


def _write_row(rows: PyTree, row: PyTree, t: jax.Array | int) -> PyTree:
    def write(leaf: jax.Array, new: jax.Array) -> jax.Array:
        return jax.lax.dynamic_update_index_in_dim(leaf, new, t, axis=0)

    return jax.tree.map(write, rows, row)


class BufferAllocator:
    """Allocates the buffers of act cycles on one device."""

    def __init__(
        self,
        agent: Agent,
        networks: Networks,
        carry: ActCarry,
        *,
        trajectory_length: int,
        device: jax.Device,
    ):
        def rows(count: int, tree: PyTree) -> PyTree:
            return jax.tree.map(lambda x: jnp.zeros((count, *x.shape), x.dtype), tree)

        def act(networks: Networks, carry: ActCarry) -> tuple[PyTree, PyTree, ActorState]:
            return agent.act(networks, carry.actor_state, carry.env_step, greedy=False)

        action, extras, _ = jax.eval_shape(act, networks, carry)
        env_step, statistics = jax.eval_shape(lambda: (carry.env_step, carry.statistics))

        def allocate() -> _Buffer:
            return _Buffer(
                trajectory=Trajectory(
                    env_steps=rows(trajectory_length + 1, env_step),
                    action=rows(trajectory_length, action),
                    extras=rows(trajectory_length, extras),
                ),
                episodes=rows(trajectory_length, statistics),
            )

        self._allocate = jax.jit(allocate, out_shardings=jax.sharding.SingleDeviceSharding(device))

    def __call__(self) -> _Buffer:
        """Returns a buffer of zeros."""
        return self._allocate()


class FusedCycle:
    """An act cycle as one jitted scan; for environments that can be stepped inside `jit`."""

    def __init__(
        self,
        agent: Agent,
        environment: FusedEnvironment,
        *,
        allocate: BufferAllocator,
        trajectory_length: int,
        device: jax.Device,
        clock: WallClock,
    ):
        self._device = device
        self._is_whole_state = environment.is_whole_state
        self._env_state = jax.device_put(environment.state, device)
        self._allocate = allocate
        self._clock = clock

        def cycle(networks, actor_state, buffer, env_step, statistics, env_state):
            def body(scanned, t):
                carry, buffer, env_state = scanned
                action, actor_state, statistics, buffer = _act(agent, networks, carry, buffer, t)
                env_state, env_step = environment.step(env_state, action)
                carry = ActCarry(actor_state=actor_state, env_step=env_step, statistics=statistics)
                return (carry, buffer, env_state), None

            carry = ActCarry(actor_state=actor_state, env_step=env_step, statistics=statistics)
            (carry, buffer, env_state), _ = jax.lax.scan(
                body, (carry, buffer, env_state), jnp.arange(trajectory_length)
            )
            return env_state, carry, _finish(buffer, carry.actor_state, carry.env_step)

        self._cycle = jax.jit(cycle, donate_argnames=("actor_state", "buffer"))

    def __call__(self, networks: Networks, carry: ActCarry) -> tuple[ActCarry, CycleResult]:
        """Acts `T` steps; `carry.actor_state` is donated."""
        env_state = self._env_state if carry.env_state is None else carry.env_state
        self._env_state, carry, result = self._cycle(
            networks,
            carry.actor_state,
            self._allocate(),
            jax.device_put(carry.env_step, self._device),
            carry.statistics,
            env_state,
        )
        jax.block_until_ready(result)
        if self._is_whole_state:
            carry = dataclasses.replace(carry, env_state=self._env_state)
        self._clock.lap(ACT)
        return carry, result


class StepFunctions:
    """The jitted functions of stepped act cycles, shared by all actors."""

    def __init__(self, agent: Agent):
        def step(networks, actor_state, statistics, buffer, env_step, t):
            carry = ActCarry(actor_state=actor_state, env_step=env_step, statistics=statistics)
            action, actor_state, statistics, buffer = _act(agent, networks, carry, buffer, t)
            return action, actor_state, statistics, buffer, t + 1

        def finish(buffer, actor_state, env_step):
            return _finish(buffer, actor_state, env_step)

        self.step: Callable = jax.jit(step, donate_argnames=("actor_state", "buffer"))
        self.finish: Callable = jax.jit(finish, donate_argnames=("buffer",))


class SteppedCycle:
    """An act cycle with one jitted call an env step; for any environment."""

    def __init__(
        self,
        functions: StepFunctions,
        environment: Environment,
        *,
        allocate: BufferAllocator,
        trajectory_length: int,
        device: jax.Device,
        clock: WallClock,
    ):
        self._functions = functions
        self._environment = environment
        self._allocate = allocate
        self._trajectory_length = trajectory_length
        self._clock = clock
        self._first = jax.device_put(np.int32(0), device)

    def __call__(self, networks: Networks, carry: ActCarry) -> tuple[ActCarry, CycleResult]:
        """Acts `T` steps; `carry.actor_state` is donated."""
        actor_state, statistics = carry.actor_state, carry.statistics
        env_step, buffer, t = carry.env_step, self._allocate(), self._first
        for _ in range(self._trajectory_length):
            action, actor_state, statistics, buffer, t = self._functions.step(
                networks, actor_state, statistics, buffer, env_step, t
            )
            # Waiting for the action also waits for the read of `env_step`, which on a CPU may be
            # the environment's own memory.
            action = jax.tree.map(np.asarray, action)
            self._clock.lap(INFERENCE)
            env_step = self._environment.step(action)
            self._clock.lap(ENVIRONMENT)
        result = self._functions.finish(buffer, actor_state, env_step)
        jax.block_until_ready(result)
        self._clock.lap(INFERENCE)
        carry = ActCarry(actor_state=actor_state, env_step=env_step, statistics=statistics)
        return carry, result
