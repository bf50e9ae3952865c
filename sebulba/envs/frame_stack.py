"""Frame stacks of JAX tasks. For Gymnasium, use `gymnasium.wrappers:FrameStackObservation`."""

import dataclasses
from collections.abc import Callable
from typing import Literal

import gymnasium
import jax
import jax.numpy as jnp

from sebulba import types
from sebulba.envs.jax_environment import JaxTask
from sebulba.envs.jax_tasks import TaskStep
from sebulba.envs.jax_wrappers import of_inner_state
from sebulba.errors import ConfigError
from sebulba.pytree import describe_inline, pytree_dataclass
from sebulba.types import PyTree


@pytree_dataclass
class FrameStackState:
    """The state of the task, and the frames that the agent sees."""

    task_state: PyTree
    frames: jax.Array  # [size, ...], the newest last


@dataclasses.dataclass(frozen=True)
class FrameStack:
    """Show the newest `size` observations of a task, in the order of their age, the newest last.

    At the start of an episode, the older ones are copies of the first (`fill: repeat`) or zeros.
    With `axis: null` they are stacked on a new first axis, as `agent.frame_stack` expects, which
    stores each frame once in a replay buffer. Otherwise they are concatenated on that axis, such as
    the channels of an image.
    """

    task: JaxTask
    size: int = 4
    fill: Literal["repeat", "zeros"] = "repeat"
    axis: int | None = None

    def __post_init__(self):
        if self.size < 1 or self.fill not in ("repeat", "zeros"):
            raise ConfigError(
                "env.wrappers: FrameStack expects size of at least 1 and fill repeat or zeros, got"
                f" size {self.size} and fill {self.fill}"
            )
        if not isinstance(self.task.observation, jax.ShapeDtypeStruct):
            raise ConfigError(
                "env.wrappers: FrameStack expects one array as observation, got"
                f" {describe_inline(self.task.observation)}; select one with a wrapper inside of it"
            )

    @property
    def observation(self) -> jax.ShapeDtypeStruct:
        """The stacked frames."""
        frame = self.task.observation
        frames = jax.ShapeDtypeStruct((self.size, *frame.shape), frame.dtype)
        return jax.eval_shape(self._show, frames)

    @property
    def frame_stack(self) -> types.FrameStack | None:
        """How frames are stacked; None: they are not."""
        axis, num_axes = self.axis or 0, len(self.observation.shape)
        if self.size == 1:
            return None
        return types.FrameStack(size=self.size, axis=axis % num_axes, fill=self.fill)

    @property
    def action_space(self) -> gymnasium.Space:
        """That of the task."""
        return self.task.action_space

    def reset(self, key: jax.Array) -> tuple[FrameStackState, jax.Array]:
        """Start an episode."""
        task_state, frame = self.task.reset(key)
        older = jnp.zeros_like(frame) if self.fill == "zeros" else frame
        frames = jnp.stack([*[older] * (self.size - 1), frame])
        return FrameStackState(task_state=task_state, frames=frames), self._show(frames)

    def step(self, state: FrameStackState, action: jax.Array, key: jax.Array) -> TaskStep:
        """Take one step."""
        task_state, frame, *rest = self.task.step(state.task_state, action, key)
        frames = jnp.concatenate([state.frames[1:], frame[None]])
        reward, terminated, truncated = rest
        state = FrameStackState(task_state=task_state, frames=frames)
        return state, self._show(frames), reward, terminated, truncated

    @property
    def action_mask(self) -> Callable[[FrameStackState], jax.Array] | None:
        """That of the task."""
        return of_inner_state(self.task, "action_mask")

    @property
    def render(self) -> Callable[[FrameStackState], jax.Array] | None:
        """That of the task."""
        return of_inner_state(self.task, "render")

    def _show(self, frames: jax.Array) -> jax.Array:
        return frames if self.axis is None else jnp.concatenate(list(frames), axis=self.axis)
