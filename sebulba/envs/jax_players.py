"""A small task of several players that act at the same time, in pure JAX."""

import dataclasses

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from sebulba.envs.jax_tasks import TaskStep, require_option
from sebulba.pytree import pytree_dataclass

_WHITE = np.array([255, 255, 255], np.uint8)
_GREY = np.array([96, 96, 96], np.uint8)
_COST = 0.1  # of a step in which every player is inside


@pytree_dataclass
class CorridorState:
    """The cells of the players and the steps of the episode."""

    cell: jax.Array  # [P] int32, from the door on, which is cell 0
    elapsed: jax.Array  # [] int32


@dataclasses.dataclass(frozen=True, kw_only=True)
class Corridor:
    """Players leave a corridor through the door at its end, each from a random cell.

    Actions: 0 towards the door, 1 stay, 2 away from it. A player that reaches the door receives 1
    and is out, before the others if it was nearer. Every other step costs a player 0.1 times the
    share of players that are still inside. Those that are inside after `steps` steps are truncated.
    """

    players: int = 3
    cells: int = 6
    steps: int = 20

    def __post_init__(self):
        require_option(self.players >= 1, "players", "at least 1", self.players)
        require_option(self.cells >= 2, "cells", "at least 2", self.cells)
        require_option(self.steps >= 1, "steps", "at least 1", self.steps)

    @property
    def num_players(self) -> int:
        """`P`."""
        return self.players

    @property
    def observation(self) -> jax.ShapeDtypeStruct:
        """One-hot cell, then the share of players inside."""
        return jax.ShapeDtypeStruct((self.cells + 1,), np.float32)

    @property
    def action_space(self) -> gymnasium.Space:
        """Towards the door, stay, away from it."""
        return gymnasium.spaces.Discrete(3)

    def reset(self, key: jax.Array) -> tuple[CorridorState, jax.Array]:
        """Place each player in a random cell."""
        cell = jax.random.randint(key, (self.players,), 1, self.cells, jnp.int32)
        state = CorridorState(cell=cell, elapsed=jnp.zeros((), jnp.int32))
        return state, self._observe(state)

    def step(self, state: CorridorState, action: jax.Array, key: jax.Array) -> TaskStep:
        """Move every player that is inside."""
        del key
        is_inside = state.cell > 0
        moved = jnp.clip(state.cell + action - 1, 0, self.cells - 1)
        state = CorridorState(
            cell=jnp.where(is_inside, moved, 0), elapsed=state.elapsed + jnp.int32(1)
        )
        terminated = state.cell == 0
        cost = jnp.float32(_COST) * jnp.mean(is_inside.astype(jnp.float32))
        reward = jnp.where(terminated, jnp.float32(1.0), -cost)
        truncated = (state.elapsed >= self.steps) & ~terminated
        return state, self._observe(state), reward, terminated, truncated

    def render(self, state: CorridorState) -> jax.Array:
        """Return uint8 `[P, cells, 3]`, one pixel per cell and player: player white, door grey."""
        frame = jnp.zeros((self.players, self.cells, 3), jnp.uint8).at[:, 0].set(_GREY)
        return frame.at[jnp.arange(self.players), state.cell].set(_WHITE)

    def _observe(self, state: CorridorState) -> jax.Array:
        share = jnp.mean((state.cell > 0).astype(jnp.float32))
        shares = jnp.broadcast_to(share, (self.players, 1))
        cells = jax.nn.one_hot(state.cell, self.cells, dtype=jnp.float32)
        return jnp.concatenate([cells, shares], axis=-1)
