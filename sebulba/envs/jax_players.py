"""Small tasks of several players that act at the same time, in pure JAX."""

import dataclasses

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from sebulba.envs.jax_tasks import TaskStep, require_option
from sebulba.pytree import pytree_dataclass
from sebulba.types import PyTree

_WHITE = np.array([255, 255, 255], np.uint8)
_GREY = np.array([96, 96, 96], np.uint8)
_ORANGE = np.array([255, 140, 0], np.uint8)
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


@pytree_dataclass
class TidesState:
    """What swims past each player, the tide, and the steps of the episode."""

    fish: jax.Array  # [P] int32
    flood: jax.Array  # [] int32, 1 at flood and 0 at ebb
    elapsed: jax.Array  # [] int32


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tides:
    """Players choose nets for fish, and are paid by a tide that none of them sees.

    In every step a fish of a random kind swims past each player, which chooses the net of a kind.
    All receive the share of the players that chose right, plus `swell` at flood or minus `swell` at
    ebb. The tide turns with every step, from a random one on, and an episode terminates after
    `steps` steps, which are even: so the tide leaves a return as it is, at most `steps`, but makes
    it hard to tell what an action was worth. A value function that sees the state is not misled.
    """

    players: int = 3
    kinds: int = 4
    steps: int = 8
    swell: float = 8.0
    state: bool = False
    """Observations are Dicts, also with the `state`: the tide, and the fish of all players."""

    def __post_init__(self):
        require_option(self.players >= 1, "players", "at least 1", self.players)
        require_option(self.kinds >= 2, "kinds", "at least 2", self.kinds)
        is_even = self.steps >= 2 and self.steps % 2 == 0
        require_option(is_even, "steps", "an even number of at least 2", self.steps)

    @property
    def num_players(self) -> int:
        """`P`."""
        return self.players

    @property
    def observation(self) -> jax.ShapeDtypeStruct | dict[str, jax.ShapeDtypeStruct]:
        """One-hot fish of the player, then the share of the episode that has passed."""
        seen = jax.ShapeDtypeStruct((self.kinds + 1,), np.float32)
        if not self.state:
            return seen
        size = 1 + self.players * self.kinds
        return {"observation": seen, "state": jax.ShapeDtypeStruct((size,), np.float32)}

    @property
    def action_space(self) -> gymnasium.Space:
        """A net for each kind."""
        return gymnasium.spaces.Discrete(self.kinds)

    def reset(self, key: jax.Array) -> tuple[TidesState, PyTree]:
        """Draw the tide and the first fish."""
        fish_key, tide_key = jax.random.split(key)
        state = TidesState(
            fish=self._draw_fish(fish_key),
            flood=jax.random.randint(tide_key, (), 0, 2, jnp.int32),
            elapsed=jnp.zeros((), jnp.int32),
        )
        return state, self._observe(state)

    def step(self, state: TidesState, action: jax.Array, key: jax.Array) -> TaskStep:
        """Pay the players, turn the tide, and draw the next fish."""
        share = jnp.mean((action == state.fish).astype(jnp.float32))
        reward = share + self.swell * (2.0 * state.flood.astype(jnp.float32) - 1.0)
        state = TidesState(
            fish=self._draw_fish(key), flood=1 - state.flood, elapsed=state.elapsed + jnp.int32(1)
        )
        over = jnp.broadcast_to(state.elapsed >= self.steps, (self.players,))
        rewards = jnp.broadcast_to(reward, (self.players,))
        return state, self._observe(state), rewards, over, jnp.zeros(self.players, bool)

    def render(self, state: TidesState) -> jax.Array:
        """Return uint8 `[P + 1, kinds, 3]`: the fish of players orange, the flood below white."""
        frame = jnp.zeros((self.players + 1, self.kinds, 3), jnp.uint8)
        frame = frame.at[jnp.arange(self.players), state.fish].set(_ORANGE)
        return frame.at[self.players].set(jnp.where(state.flood == 1, _WHITE, _GREY))

    def _draw_fish(self, key: jax.Array) -> jax.Array:
        return jax.random.randint(key, (self.players,), 0, self.kinds, jnp.int32)

    def _observe(self, state: TidesState) -> PyTree:
        fish = jax.nn.one_hot(state.fish, self.kinds, dtype=jnp.float32)
        share = (state.elapsed / self.steps).astype(jnp.float32)
        seen = jnp.concatenate([fish, jnp.broadcast_to(share, (self.players, 1))], axis=-1)
        if not self.state:
            return seen
        flood = state.flood.astype(jnp.float32)
        of_all = jnp.concatenate([flood[None], fish.reshape(-1)])
        return {
            "observation": seen,
            "state": jnp.broadcast_to(of_all, (self.players, *of_all.shape)),
        }
