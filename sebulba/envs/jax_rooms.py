"""A room to walk about in, in pure JAX; nothing in it is paid."""

import dataclasses

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from sebulba.errors import ConfigError
from sebulba.pytree import pytree_dataclass

_MOVES = np.array([[-1, 0], [1, 0], [0, -1], [0, 1]], np.int32)


@pytree_dataclass
class RoomState:
    """Where one stands, and since when."""

    position: jax.Array  # [2] int32, row and column
    elapsed: jax.Array  # [] int32


@dataclasses.dataclass(frozen=True, kw_only=True)
class Room:
    """A square room, entered in the middle; for agents that need no reward.

    Actions: 0 up, 1 down, 2 left, 3 right; a step against a wall stays. The reward is 0, and the
    episode is truncated after `steps` steps.
    """

    size: int = 9
    steps: int = 16

    def __post_init__(self):
        for name, value in (("size", self.size), ("steps", self.steps)):
            if value < 1:
                raise ConfigError(f"env.options.{name}: expected at least 1, got {value}")

    @property
    def observation(self) -> jax.ShapeDtypeStruct:
        """The room, flat: 1 where one stands, else 0."""
        return jax.ShapeDtypeStruct((self.size * self.size,), np.float32)

    @property
    def action_space(self) -> gymnasium.Space:
        """Up, down, left, right."""
        return gymnasium.spaces.Discrete(len(_MOVES))

    def reset(self, key: jax.Array) -> tuple[RoomState, jax.Array]:
        """Begins in the middle, always."""
        del key
        middle = jnp.full(2, self.size // 2, jnp.int32)
        state = RoomState(position=middle, elapsed=jnp.zeros((), jnp.int32))
        return state, self._observe(state)

    def step(
        self, state: RoomState, action: jax.Array, key: jax.Array
    ) -> tuple[RoomState, jax.Array, jax.Array, jax.Array, jax.Array]:
        """Takes a step."""
        del key
        position = jnp.clip(state.position + jnp.asarray(_MOVES)[action], 0, self.size - 1)
        state = RoomState(position=position, elapsed=state.elapsed + 1)
        reward, terminated = jnp.zeros((), jnp.float32), jnp.zeros((), bool)
        return state, self._observe(state), reward, terminated, state.elapsed >= self.steps

    def _observe(self, state: RoomState) -> jax.Array:
        place = state.position[0] * self.size + state.position[1]
        return jax.nn.one_hot(place, self.size * self.size, dtype=jnp.float32)
