"""Frame stacks kept as single frames, and rebuilt as the agent saw them.

A frame stack shows the newest `k` frames. In place of frames before an episode, EnvPool repeats the
episode's first frame and ALE's vector environment shows zeros. The rows that begin a new stack are
an argument, because with `episodic_life` a lost life begins an episode and leaves the stack.

`with_single_frames` gives a row without the older frames of its stack. A trajectory of such rows,
with the older frames of row 0 beside them, holds each frame once; `with_stacks` rebuilds it.
"""

import dataclasses
import functools
import operator

import chex
import jax
import jax.numpy as jnp
import numpy as np

from sebulba.pytree import pytree_dataclass
from sebulba.types import Array, EnvStep, FrameStack, Trajectory


@pytree_dataclass
class SingleFrames:
    """What rows have in place of their observations, which are stacks."""

    newest: Array  # [..., B, ...], the last 1/k of each stack
    # [..., B] bool, rows that begin a new stack; None: those that are a reset. Of a trajectory's
    # row 0 it means nothing.
    begins: Array | None
    stack: FrameStack = dataclasses.field(metadata={"static": True})


@pytree_dataclass
class TrajectoryFrames:
    """What a trajectory has in place of its observations, which are stacks."""

    older: Array  # [k - 1, B, ...], the frames of row 0's stack before its newest
    rows: SingleFrames  # [T + 1, B]


def newest_frame(observation: jax.Array, stack: FrameStack) -> jax.Array:
    """Return the newest frame, without the stack axis.

    Args:
        observation: `[T, B, ...]`, with the stack at `2 + stack.axis`.
        stack: how the frames were stacked.
    """
    axis = 2 + stack.axis
    chex.assert_axis_dimension(observation, axis, stack.size)
    return jax.lax.index_in_dim(observation, stack.size - 1, axis, keepdims=False)


def rebuild_stacks(frames: jax.Array, starts: jax.Array, stack: FrameStack) -> jax.Array:
    """Return stacked observations, as the agent saw them.

    Args:
        frames: `[k - 1 + T, B, ...]`, consecutive rows; the first `k - 1` are context.
        starts: `[k - 1 + T, B]` bool, where the stack was cleared.
        stack: how the frames were stacked.

    Returns:
        Observations `[T, B, ...]` of the last `T` rows, with the stack at `2 + stack.axis`.
    """
    return jnp.moveaxis(_shown(frames, starts, stack), 2, 2 + stack.axis)


def _shown(frames: Array, starts: Array, stack: FrameStack) -> Array:
    """Return the frames that each of the last `T` rows shows, `[T, B, k, ...]`, the newest last.

    Args:
        frames: `[k - 1 + T, B, ...]`, consecutive rows; NumPy stays NumPy.
        starts: `[k - 1 + T, B]` bool, where the stack was cleared.
        stack: how the frames were stacked.
    """
    xp = np if isinstance(frames, np.ndarray) else jnp
    (num_rows, num_envs), first = starts.shape, stack.num_context_rows
    flat = frames.reshape(num_rows * num_envs, *frames.shape[2:])
    newest = xp.arange(first * num_envs, len(flat)).reshape(-1, num_envs)
    if stack.fill == "zeros":
        flat = xp.concatenate([flat, xp.zeros_like(flat[:1])])
    is_shown, source, sources = xp.ones(newest.shape, bool), newest, [newest]
    for age in range(1, stack.size):
        is_shown = is_shown & ~starts[first - age + 1 : num_rows - age + 1]
        fill = source if stack.fill == "repeat" else len(flat) - 1
        source = xp.where(is_shown, newest - age * num_envs, fill)
        sources.append(source)
    # One gather of whole frames: on a CPU, it takes as long as a copy of the stacks.
    return xp.take(flat, xp.stack(sources[::-1], axis=2), axis=0, mode="clip")


def with_single_frames(env_step: EnvStep, stack: FrameStack | None) -> EnvStep:
    """Return rows `[..., B]` without the older frames of their stacks, in jitted functions.

    Args:
        env_step: rows as the environments returned them.
        stack: how they stack frames; None: the rows stay as they are.
    """
    if stack is None:
        return env_step
    axis = env_step.reward.ndim + stack.axis
    *older, newest = jnp.split(env_step.observation, stack.size, axis=axis)
    begins = None
    if env_step.episode_over is not None:
        # A lost life begins an episode, and may leave the stack. A stack that shows no older frame
        # may count as a new one, whatever it is: later stacks show the same frames.
        fill = _bits(newest if stack.fill == "repeat" else jnp.zeros_like(newest))
        # On a CPU, a maximum takes a quarter of the time that `all` takes.
        difference = functools.reduce(operator.or_, [_bits(frame) ^ fill for frame in older])
        axes = tuple(range(env_step.reward.ndim, difference.ndim))
        begins = env_step.is_first & (jnp.max(difference, axis=axes) == 0)
    frames = SingleFrames(newest=newest, begins=begins, stack=stack)
    return dataclasses.replace(env_step, observation=frames)


def older_frames(observation: jax.Array, stack: FrameStack) -> jax.Array:
    """Return the frames of stacks `[B, ...]` before their newest, `[k - 1, B, ...]`."""
    return jnp.stack(jnp.split(observation, stack.size, axis=1 + stack.axis)[:-1])


def with_older_frames(trajectory: Trajectory, older: Array) -> Trajectory:
    """Return a trajectory of `with_single_frames` with the `older_frames` of its row 0."""
    frames = TrajectoryFrames(older=older, rows=trajectory.env_steps.observation)
    env_steps = dataclasses.replace(trajectory.env_steps, observation=frames)
    return dataclasses.replace(trajectory, env_steps=env_steps)


def with_stacks(trajectory: Trajectory) -> Trajectory:
    """Return a trajectory with its observations; one that has them stays as it is."""
    env_steps = trajectory.env_steps
    if not isinstance(env_steps.observation, TrajectoryFrames):
        return trajectory
    observation = _stacks(env_steps, num_rows=len(env_steps.reward))
    env_steps = dataclasses.replace(env_steps, observation=observation)
    return dataclasses.replace(trajectory, env_steps=env_steps)


def last_row(env_steps: EnvStep) -> EnvStep:
    """Return the last row `[B]` of a trajectory, with its observation; NumPy stays NumPy."""
    observation = env_steps.observation
    if isinstance(observation, TrajectoryFrames):
        observation = _stacks(env_steps, num_rows=1)
    return jax.tree.map(
        lambda leaf: leaf[-1], dataclasses.replace(env_steps, observation=observation)
    )


def _stacks(env_steps: EnvStep, *, num_rows: int) -> Array:
    """Return the stacks of a trajectory's last rows."""
    frames, rows = env_steps.observation.older, env_steps.observation.rows
    xp = np if isinstance(frames, np.ndarray) else jnp
    stack, begins = rows.stack, env_steps.is_first if rows.begins is None else rows.begins
    # The older frames of row 0 are known, also where it begins a stack.
    of_known = xp.zeros((stack.size, *begins.shape[1:]), bool)
    starts = xp.concatenate([of_known, begins[1:]])[-(stack.num_context_rows + num_rows) :]
    frames = xp.concatenate([frames, rows.newest])[-len(starts) :]
    shown = xp.moveaxis(_shown(frames, starts, stack), 2, 2 + stack.axis)
    shape = list(rows.newest.shape)
    shape[0], shape[2 + stack.axis] = num_rows, stack.size * shape[2 + stack.axis]
    return shown.reshape(shape)


def _bits(frames: jax.Array) -> jax.Array:
    """Return numbers as unsigned integers with their bits: -0.0 is not 0.0."""
    if frames.dtype == bool:
        return frames.astype(jnp.uint8)
    return jax.lax.bitcast_convert_type(frames, f"uint{8 * frames.dtype.itemsize}")
