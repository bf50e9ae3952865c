"""One act cycle: `T` steps of `B` environments, as one trajectory.

Two implementations give the same trajectories, and share the functions of this file:

- *fused* (`fused_cycle`): one jitted loop with the environment inside it;
- *stepped* (`stepped_cycle`): one jitted call per step, for environments that only Python can step.

A cycle works on its own copy of the actor state and on a new trajectory buffer. The stepped cycle
donates both from step to step; the fused one writes them in place inside one program. The carry
that a cycle is given stays as it is. Both can act complete episodes (`whole_episodes`).
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from sebulba.agent import Agent
from sebulba.devices.memory import stack_rows
from sebulba.devices.xla_workarounds import OneAtATime
from sebulba.envs.base import ActionError, EnvironmentDataError, EnvironmentFault
from sebulba.envs.data_checks import describe_non_finite, is_finite
from sebulba.errors import ConfigError, describe_error
from sebulba.pytree import pytree_dataclass
from sebulba.ring.episodes import EpisodeTracker
from sebulba.ring.records import ActCarry, Collected, EpisodeStatistics, Tally
from sebulba.toolkit.frame_stack import (
    older_frames,
    with_older_frames,
    with_single_frames,
    with_stacks,
)
from sebulba.types import ActorState, EnvStep, FrameStack, Networks, PyTree, Trajectory

ENV_STEP_SCOPE = "env_step"
"""The named scope of what an act cycle computes for each row, in compiled programs and profiles."""

Act = Callable[[Networks, ActorState, EnvStep], tuple[PyTree, PyTree, ActorState]]
"""`Agent.act`, greedy or not: takes a row `[B]`; returns actions, extras and the next state."""


class ActCycle(Protocol):
    """Runs act cycles of one actor."""

    def __call__(self, networks: Networks, carry: ActCarry) -> Collected:
        """Act `T` steps; the results are on the actor's device, ready, and never donated.

        Raises:
            EnvironmentFault: the environment failed or returned bad data. Its environments must be
                recreated before the next cycle.
        """
        ...


@pytree_dataclass
class Buffer:
    """A partly written trajectory, whose rows are written in place."""

    trajectory: Trajectory  # if stacks are kept as single frames, without the older ones of row 0
    num_rows: jax.Array  # [] int32, written
    older: jax.Array | None = None  # [k - 1, B, ...], these frames


def init_carry(
    agent: Agent,
    networks: Networks,
    env_step: EnvStep,
    *,
    key: jax.Array,
    global_actor_id: int,
    device: jax.Device,
    tracker: EpisodeTracker,
    env_state: PyTree = None,
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
    return ActCarry(
        actor_state=actor_state,
        env_step=env_step,
        statistics=statistics,
        env_state=jax.device_put(env_state, device),
    )


def traced_once(agent: Agent, *, greedy: bool = False) -> Act:
    """Return `agent.act`, traced once for all functions that call what is returned."""
    return jax.jit(functools.partial(agent.act, greedy=greedy), inline=True)


def empty_buffer(
    act: Act,
    networks: Networks,
    actor_state: ActorState,
    env_step: EnvStep,
    *,
    length: int,
    frame_stack: FrameStack | None,
) -> Buffer:
    """Return a buffer for `length` transitions; call it within a jitted function.

    Args:
        act: selects actions.
        networks: act.
        actor_state: before `env_step`.
        env_step: row 0.
        length: `T`.
        frame_stack: how observations stack the frames that are kept once; None: they are kept.
    """
    action, extras, _ = jax.eval_shape(act, networks, actor_state, env_step)
    row = with_single_frames(env_step, frame_stack)
    shapes = stack_rows(row, action, extras, length=length)
    older = None if frame_stack is None else older_frames(env_step.observation, frame_stack)
    return Buffer(
        trajectory=jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes),
        num_rows=jnp.int32(0),
        older=older,
    )


def act_row(
    act: Act, networks: Networks, actor_state: ActorState, env_step: EnvStep, buffer: Buffer
) -> tuple[PyTree, ActorState, Buffer]:
    """Select actions from a row, and append the row with the actions to the buffer."""
    trajectory, in_order = buffer.trajectory, OneAtATime(buffer.num_rows)
    row = _as_kept(env_step, buffer)
    env_steps = in_order.map(write_row, trajectory.env_steps, row)
    actor_state = in_order.follow(actor_state)
    action, extras, actor_state = act(networks, actor_state, env_step)
    in_order.wait_for(jax.tree.leaves(action)[0])
    actions, every_extras = in_order.map(
        write_row, (trajectory.action, trajectory.extras), (action, extras)
    )
    trajectory = Trajectory(env_steps=env_steps, action=actions, extras=every_extras)
    buffer = dataclasses.replace(buffer, trajectory=trajectory, num_rows=in_order.counter + 1)
    return action, actor_state, buffer


@jax.named_scope(ENV_STEP_SCOPE)
def append_rows(buffer: Buffer, env_steps: EnvStep, actions: PyTree, extras: PyTree) -> Buffer:
    """Append rows `[n, B, ...]` with their actions to the buffer, in place if it is donated."""

    def write(rows: PyTree, new: PyTree) -> PyTree:
        return jax.tree.map(
            lambda leaf, x: jax.lax.dynamic_update_slice_in_dim(leaf, x, buffer.num_rows, axis=0),
            rows,
            new,
        )

    rows = _as_kept(env_steps, buffer)
    trajectory = Trajectory(
        env_steps=write(buffer.trajectory.env_steps, rows),
        action=write(buffer.trajectory.action, actions),
        extras=write(buffer.trajectory.extras, extras),
    )
    num_rows = buffer.num_rows + len(env_steps.reward)
    return dataclasses.replace(buffer, trajectory=trajectory, num_rows=num_rows)


def write_row(rows: PyTree, row: PyTree, t: jax.Array | int) -> PyTree:
    """Return `[R, B, ...]` rows with `row` `[B, ...]` as row `t`, written in place if donated.

    Raises:
        ValueError: the row has another shape, which `dynamic_update_index_in_dim` would accept.
    """

    def write(leaf: jax.Array, new: jax.Array) -> jax.Array:
        if leaf.shape[1:] != jnp.shape(new):
            raise ValueError(f"expected a row of shape {leaf.shape[1:]}, got {jnp.shape(new)}")
        return jax.lax.dynamic_update_index_in_dim(leaf, new, t, axis=0)

    return jax.tree.map(write, rows, row)


def _as_kept(env_steps: EnvStep, buffer: Buffer) -> EnvStep:
    """Return rows `[..., B]` as the buffer keeps them."""
    if buffer.older is None:
        return env_steps
    return with_single_frames(env_steps, buffer.trajectory.env_steps.observation.stack)


def trajectory_of(buffer: Buffer) -> Trajectory:
    """Return the buffer's trajectory, complete in its written rows."""
    if buffer.older is None:
        return buffer.trajectory
    return with_older_frames(buffer.trajectory, buffer.older)


def finish_rows(
    buffer: Buffer, statistics: EpisodeStatistics, last: EnvStep, tracker: EpisodeTracker
) -> tuple[EpisodeStatistics, Trajectory, Tally]:
    """Write row `T` and return the cycle's trajectory and tally.

    Args:
        buffer: holds rows 0 … `T - 1`.
        statistics: `[B]`, up to the row before row 0.
        last: row `T`, `[B]`.
        tracker: follows the episodes.

    Returns:
        The statistics up to row `T - 1`, the trajectory, and the tally.
    """
    trajectory = buffer.trajectory
    length = trajectory.env_steps.reward.shape[0] - 1
    env_steps = write_row(trajectory.env_steps, _as_kept(last, buffer), length)
    trajectory = dataclasses.replace(trajectory, env_steps=env_steps)
    trajectory = trajectory_of(dataclasses.replace(buffer, trajectory=trajectory))
    # One scan per trajectory instead of an update in every step, which would add operations to the
    # loop that is the hot path. Only reducers look at observations.
    seen = with_stacks(trajectory) if tracker.reducers else trajectory
    after, rows = tracker.follow(statistics, seen)
    num_episodes, ended = tracker.ended(statistics, rows)
    tally = Tally(
        num_episodes=num_episodes,
        ended=ended,
        env_steps=jnp.sum(trajectory.valid, dtype=jnp.int32),
        is_finite=is_finite(env_steps),
    )
    return after, trajectory, tally


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
    """Call into an environment; its exceptions become an `EnvironmentFault`.

    Not those of the config, such as an opponent that only the reset looks for.
    """
    try:
        return call(*args)
    except (ActionError, ConfigError, EnvironmentFault):
        raise
    except Exception as error:
        raise EnvironmentFault(f"{name} raised {describe_error(error)}") from error


def check_finite(trajectory: Trajectory, tally: Tally) -> None:
    """Raise `EnvironmentDataError` unless all observations and rewards are finite."""
    if tally.is_finite:
        return
    # The flag was computed in the jitted cycle; finding the place copies the trajectory.
    rows = jax.tree.map(np.asarray, with_stacks(trajectory).env_steps)
    fault = EnvironmentDataError(describe_non_finite(rows))
    fault.env_steps = int(tally.env_steps)
    raise fault
