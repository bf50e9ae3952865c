"""One act cycle: `T` env steps of `B` environments, as one trajectory.

Two implementations of one interface give the same trajectories:

- *fused* (`fused_cycle`): the whole cycle is one jitted loop with the environment in it;
- *stepped* (`stepped_cycle`): one jitted call an env step, for environments that only Python can
  step.

Both donate the actor state and the trajectory's buffer, which is written in place row by row, and
both act whole episodes if they are asked to: see `whole_episodes`. Here is what they share.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from sebulba.acting.episode_reducers import EpisodeTracker
from sebulba.acting.episodes import EpisodeStatistics
from sebulba.acting.trajectory_buffer import (
    Buffer,
    append_choice,
    append_env_step,
    write_row,
)
from sebulba.agent import Agent
from sebulba.devices.xla_cpu import tree_after
from sebulba.envs.base import ActionError, EnvironmentDataError, EnvironmentFault
from sebulba.envs.data_checks import describe_non_finite, is_finite
from sebulba.pytree import pytree_dataclass
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
    is_finite: jax.Array  # [] bool, of all observations and rewards


class ActCycle(Protocol):
    """Runs act cycles of one actor."""

    def __call__(self, networks: Networks, carry: ActCarry) -> tuple[ActCarry, CycleResult]:
        """Acts `T` steps; `carry.actor_state` is donated.

        Raises:
            EnvironmentFault: the environment failed, or gave data that cannot be learned from. The
                cycle can go on only with environments made anew.
        """
        ...


def init_carry(
    agent: Agent,
    networks: Networks,
    env_step: EnvStep,
    *,
    key: jax.Array,
    actor_id: int,
    device: jax.Device,
    tracker: EpisodeTracker,
) -> ActCarry:
    """Returns the carry of an actor's first cycle, on the actor's device.

    Args:
        agent: the algorithm.
        networks: on `device`.
        env_step: `[B]`, what `reset` gave; stays in host memory.
        key: the actor's own, consumed.
        actor_id: as `Agent.init_actor_state` takes it.
        device: the actor's.
        tracker: of episodes.
    """
    num_envs = env_step.reward.shape[0]

    def init(networks: Networks, key: jax.Array) -> tuple[ActorState, EpisodeStatistics]:
        actor_state = agent.init_actor_state(networks, num_envs, key, actor_id)
        return actor_state, tracker.init(num_envs)

    # Committed to the device, like everything that later cycles give: otherwise the second cycle
    # would be compiled again.
    sharding = jax.sharding.SingleDeviceSharding(device)
    key = jax.device_put(key, device)
    actor_state, statistics = jax.jit(init, out_shardings=sharding)(networks, key)
    return ActCarry(actor_state=actor_state, env_step=env_step, statistics=statistics)


def act_row(
    agent: Agent,
    networks: Networks,
    actor_state: ActorState,
    env_step: EnvStep,
    buffer: Buffer,
    *,
    greedy: bool = False,
) -> tuple[PyTree, ActorState, Buffer]:
    """Acts from a row and writes everything of that row into the buffer."""
    buffer = append_env_step(buffer, env_step)
    actor_state = tree_after(buffer.num_rows, actor_state)
    action, extras, actor_state = agent.act(networks, actor_state, env_step, greedy=greedy)
    return action, actor_state, append_choice(buffer, action, extras)


def finish_rows(
    buffer: Buffer,
    actor_state: ActorState,
    statistics: EpisodeStatistics,
    last: EnvStep,
    tracker: EpisodeTracker,
) -> tuple[EpisodeStatistics, CycleResult]:
    """Writes row `T` and sums the cycle up.

    Args:
        buffer: rows 0 … `T - 1` are written.
        actor_state: after row `T - 1`.
        statistics: as of the row before row 0.
        last: row `T`, `[B]`.
        tracker: of episodes.

    Returns:
        The statistics as of row `T - 1`, and what the cycle gives.
    """
    trajectory = buffer.trajectory
    length = trajectory.env_steps.reward.shape[0] - 1
    env_steps = write_row(trajectory.env_steps, last, length)
    trajectory = dataclasses.replace(trajectory, env_steps=env_steps)
    statistics, episodes = tracker.follow(statistics, trajectory)
    return statistics, CycleResult(
        # A copy: the next cycle donates `actor_state`.
        final_state=jax.tree.map(jnp.copy, actor_state),
        trajectory=trajectory,
        episodes=episodes,
        env_steps=jnp.sum(trajectory.valid, dtype=jnp.int32),
        is_finite=is_finite(trajectory.env_steps),
    )


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
        env_step = jax.eval_shape(lambda: carry.env_step)

        def allocate() -> Buffer:
            trajectory = Trajectory(
                env_steps=rows(trajectory_length + 1, env_step),
                action=rows(trajectory_length, action),
                extras=rows(trajectory_length, extras),
            )
            return Buffer(trajectory=trajectory, num_rows=jnp.int32(0))

        self._allocate = jax.jit(allocate, out_shardings=jax.sharding.SingleDeviceSharding(device))

    def __call__(self) -> Buffer:
        """Returns a buffer without rows."""
        return self._allocate()


def guarded(name: str, call: Callable, *args: PyTree) -> Any:
    """Calls into an environment; what it raises is an environment's fault."""
    try:
        return call(*args)
    except (ActionError, EnvironmentFault):
        raise
    except Exception as error:
        raise EnvironmentFault(f"{name} raised {type(error).__name__}: {error}") from error


def check_finite(result: CycleResult) -> None:
    """Raises `EnvironmentDataError` unless all observations and rewards are finite."""
    if result.is_finite:
        return
    rows = jax.tree.map(np.asarray, result.trajectory.env_steps)
    fault = EnvironmentDataError(describe_non_finite(rows))
    fault.env_steps = int(result.env_steps)
    raise fault
