"""One act cycle: `T` steps of `B` environments, as one trajectory.

Two implementations give the same trajectories, and share the functions of this file:

- *fused* (`fused_cycle`): one jitted loop with the environment inside it;
- *stepped* (`stepped_cycle`): one jitted call per step, for environments that only Python can step.

Both donate the actor state and the trajectory buffer, and write its rows in place. Both can act
complete episodes (`whole_episodes`).
"""

import dataclasses
import functools
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
from sebulba.devices.memory_plan import stack_rows
from sebulba.devices.xla_cpu import tree_after
from sebulba.envs.base import ActionError, EnvironmentDataError, EnvironmentFault
from sebulba.envs.data_checks import describe_non_finite, is_finite
from sebulba.pytree import pytree_dataclass
from sebulba.types import ActorState, EnvStep, Networks, PyTree, Trajectory


@pytree_dataclass
class ActCarry:
    """What one act cycle hands to the next."""

    actor_state: ActorState  # before `env_step`; the only donated part
    env_step: EnvStep  # [B], row 0 of the next cycle
    statistics: EpisodeStatistics  # [B], up to the row before `env_step`
    env_state: PyTree = None  # the complete environment state; None: it cannot be stored


@pytree_dataclass
class CycleResult:
    """What an act cycle returns; none of it is donated or overwritten later."""

    final_state: ActorState  # after row T - 1
    trajectory: Trajectory
    episodes: EpisodeStatistics  # [T, B], up to each of rows 0 … T - 1
    env_steps: jax.Array  # [] int32, valid transitions
    is_finite: jax.Array  # [] bool, of all observations and rewards


class ActCycle(Protocol):
    """Runs act cycles of one actor."""

    def __call__(self, networks: Networks, carry: ActCarry) -> tuple[ActCarry, CycleResult]:
        """Act `T` steps; donates `carry.actor_state`.

        Raises:
            EnvironmentFault: the environment failed or returned bad data. Its environments must be
                recreated before the next cycle.
        """
        ...


def init_carry(
    agent: Agent,
    networks: Networks,
    env_step: EnvStep,
    *,
    key: jax.Array,
    global_actor_id: int,
    device: jax.Device,
    tracker: EpisodeTracker,
) -> ActCarry:
    """Return the carry of an actor's first cycle, on the actor's device.

    The key is consumed; `env_step` `[B]`, from `reset`, stays in host memory.
    """
    num_envs = env_step.reward.shape[0]

    def init(networks: Networks, key: jax.Array) -> tuple[ActorState, EpisodeStatistics]:
        actor_state = agent.init_actor_state(networks, num_envs, key, global_actor_id)
        return actor_state, tracker.init(num_envs)

    # Committed to the device, like the carry of later cycles: otherwise the second cycle would
    # compile again.
    actor_state, statistics = jit_on(device, init)(networks, jax.device_put(key, device))
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
    """Select actions from a row, and append the row with the actions to the buffer."""
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
    """Write row `T` and return the result of the cycle.

    Args:
        buffer: holds rows 0 … `T - 1`.
        actor_state: after row `T - 1`.
        statistics: `[B]`, up to the row before row 0.
        last: row `T`, `[B]`.
        tracker: of episodes.

    Returns:
        The statistics up to row `T - 1`, and the result.
    """
    trajectory = buffer.trajectory
    length = trajectory.env_steps.reward.shape[0] - 1
    env_steps = write_row(trajectory.env_steps, last, length)
    trajectory = dataclasses.replace(trajectory, env_steps=env_steps)
    # One scan per trajectory instead of an update in every step, which would add operations to the
    # loop that is the hot path.
    statistics, episodes = tracker.follow(statistics, trajectory)
    return statistics, CycleResult(
        # A copy, since the next cycle donates `actor_state` while the learner still reads this.
        final_state=jax.tree.map(jnp.copy, actor_state),
        trajectory=trajectory,
        episodes=episodes,
        env_steps=jnp.sum(trajectory.valid, dtype=jnp.int32),
        is_finite=is_finite(trajectory.env_steps),
    )


class BufferAllocator:
    """Allocates the trajectory buffers of act cycles on one device."""

    def __init__(
        self,
        agent: Agent,
        networks: Networks,
        carry: ActCarry,
        *,
        trajectory_length: int,
        device: jax.Device,
    ):
        act = functools.partial(agent.act, greedy=False)
        action, extras, _ = jax.eval_shape(act, networks, carry.actor_state, carry.env_step)
        env_step = jax.eval_shape(lambda: carry.env_step)
        shapes = stack_rows(env_step, action, extras, length=trajectory_length)

        def allocate() -> Buffer:
            trajectory = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
            return Buffer(trajectory=trajectory, num_rows=jnp.int32(0))

        self.empty = allocate  # within a jitted function
        self._allocate = jax.jit(allocate, out_shardings=jax.sharding.SingleDeviceSharding(device))

    def __call__(self) -> Buffer:
        """Return an empty buffer: each cycle needs a new one, since the learner keeps the last."""
        return self._allocate()


def jit_on(
    device: jax.Device, function: Callable[..., Any], *, donate_argnames: tuple[str, ...] = ()
) -> Callable[..., Any]:
    """Jit a function whose arguments and results are on one device; call it with positions only.

    The types of networks from a single learner device name its mesh, and so would those of results
    that follow from the networks. The second call, whose arguments are these results, would be
    traced and compiled again. So arguments and results lose the mesh here, which costs nothing.
    """
    sharding = jax.sharding.SingleDeviceSharding(device)

    @functools.wraps(function)
    def without_mesh(*args: PyTree) -> PyTree:
        return function(*jax.lax.with_sharding_constraint(args, sharding))

    return jax.jit(without_mesh, donate_argnames=donate_argnames, out_shardings=sharding)


def call_environment(name: str, call: Callable, *args: PyTree) -> Any:
    """Call into an environment; its exceptions become an `EnvironmentFault`."""
    try:
        return call(*args)
    except (ActionError, EnvironmentFault):
        raise
    except Exception as error:
        raise EnvironmentFault(f"{name} raised {type(error).__name__}: {error}") from error


def check_finite(result: CycleResult) -> None:
    """Raise `EnvironmentDataError` unless all observations and rewards are finite."""
    if result.is_finite:
        return
    # The flag was computed in the jitted cycle; finding the place copies the trajectory.
    rows = jax.tree.map(np.asarray, result.trajectory.env_steps)
    fault = EnvironmentDataError(describe_non_finite(rows))
    fault.env_steps = int(result.env_steps)
    raise fault
