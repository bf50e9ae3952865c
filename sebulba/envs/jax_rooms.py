"""A gridworld room without rewards, in pure JAX."""

import dataclasses

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from sebulba.envs.jax_tasks import TaskStep, require_option
from sebulba.pytree import pytree_dataclass

_MOVES = np.array([[-1, 0], [1, 0], [0, -1], [0, 1]], np.int32)


@pytree_dataclass
class RoomState:
    """The agent's cell and the steps of the episode."""

    position: jax.Array  # [2] int32, row and column
    elapsed: jax.Array  # [] int32


@dataclasses.dataclass(frozen=True, kw_only=True)
class Room:
    """A square room that the agent enters in the middle; for agents that need no reward.

    Actions: 0 up, 1 down, 2 left, 3 right; walls block. The reward is always 0, and the episode is
    truncated after `steps` steps.
    """

    size: int = 9
    steps: int = 16

    def __post_init__(self):
        require_option(self.size >= 1, "size", "at least 1", self.size)
        require_option(self.steps >= 1, "steps", "at least 1", self.steps)

    @property
    def observation(self) -> jax.ShapeDtypeStruct:
        """Flattened room: 1 at the agent's cell, else 0."""
        return jax.ShapeDtypeStruct((self.size * self.size,), np.float32)

    @property
    def action_space(self) -> gymnasium.Space:
        """Up, down, left, right."""
        return gymnasium.spaces.Discrete(len(_MOVES))

    def reset(self, key: jax.Array) -> tuple[RoomState, jax.Array]:
        """Start in the middle."""
        del key
        middle = jnp.full(2, self.size // 2, jnp.int32)
        state = RoomState(position=middle, elapsed=jnp.zeros((), jnp.int32))
        return state, self._observe(state)

    def step(self, state: RoomState, action: jax.Array, key: jax.Array) -> TaskStep:
        """Take one step; walls block."""
        del key
        position = jnp.clip(state.position + jnp.asarray(_MOVES)[action], 0, self.size - 1)
        state = RoomState(position=position, elapsed=state.elapsed + 1)
        reward, terminated = jnp.zeros((), jnp.float32), jnp.zeros((), bool)
        return state, self._observe(state), reward, terminated, state.elapsed >= self.steps

    def _observe(self, state: RoomState) -> jax.Array:
        cell = state.position[0] * self.size + state.position[1]
        return jax.nn.one_hot(cell, self.size * self.size, dtype=jnp.float32)
