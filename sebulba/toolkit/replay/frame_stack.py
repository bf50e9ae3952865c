"""Frame stacks stored as single frames, and rebuilt as the agent saw them.

A frame stack shows the newest `k` frames. In place of frames before an episode, EnvPool repeats the
episode's first frame and ALE's vector environment shows zeros. The rows that clear the stack are an
argument, because with `episodic_life` a lost life begins an episode without clearing it.
"""

import dataclasses
from typing import Literal

import chex
import jax
import jax.numpy as jnp


@dataclasses.dataclass(frozen=True, kw_only=True)
class FrameStack:
    """How an environment stacks frames."""

    size: int  # k
    axis: int  # of the stack in one environment's observation; its last entry is the newest frame
    fill: Literal["repeat", "zeros"] = "repeat"

    @property
    def num_context_rows(self) -> int:
        """Rows before a sequence whose frames are in its first stack."""
        return self.size - 1


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
    context = stack.num_context_rows
    row = jnp.arange(frames.shape[0], dtype=jnp.int32)[:, None]
    newest_start = jax.lax.cummax(jnp.where(starts, row, -1), axis=0)[context:]
    planes = []
    for age in reversed(range(stack.size)):
        source = row[context:] - age
        shown = source >= newest_start
        if stack.fill == "repeat":
            source = jnp.maximum(source, newest_start)
        plane = frames[source, jnp.arange(frames.shape[1])[None]]
        if stack.fill == "zeros":
            shown = jnp.broadcast_to(shown, plane.shape[:2])
            shown = shown.reshape(shown.shape + (1,) * (plane.ndim - 2))
            plane = jnp.where(shown, plane, jnp.zeros((), plane.dtype))
        planes.append(plane)
    return jnp.stack(planes, axis=2 + stack.axis)
