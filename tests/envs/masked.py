"""A small task with action masks, in JAX and NumPy: each cell of a ring forbids one action.

The mask is part of the task's state, so that a test can tell it from the position: the forbidden
action in cell `c` is `c % 3`. Legal actions have the reward 1, illegal ones −1. Episodes take 6 to
11 steps, and no action is legal at their ends.
"""

import dataclasses

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from sebulba.pytree import pytree_dataclass

NUM_CELLS, NUM_ACTIONS = 7, 3
MIN_STEPS, MAX_STEPS = 6, 12  # the upper bound is exclusive


@pytree_dataclass
class RingState:
    """The cell and the remaining steps."""

    cell: jax.Array  # [] int32
    remaining: jax.Array  # [] int32


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskedTask:
    """The task in JAX; the observation is the cell."""

    @property
    def observation(self):
        """One-hot."""
        return jax.ShapeDtypeStruct((NUM_CELLS,), np.float32)

    @property
    def action_space(self):
        """Move on by 1, 2 or 3 cells."""
        return gymnasium.spaces.Discrete(NUM_ACTIONS)

    def reset(self, key):
        """Start in a random cell."""
        cell_key, length_key = jax.random.split(key)
        state = RingState(
            cell=jax.random.randint(cell_key, (), 0, NUM_CELLS, jnp.int32),
            remaining=jax.random.randint(length_key, (), MIN_STEPS, MAX_STEPS, jnp.int32),
        )
        return state, self._observe(state)

    def step(self, state, action, key):
        """Move on, whether legal or not."""
        del key
        reward = jnp.where(self.action_mask(state)[action], jnp.float32(1.0), jnp.float32(-1.0))
        cell = (state.cell + action + 1) % NUM_CELLS
        state = RingState(cell=cell, remaining=state.remaining - 1)
        return state, self._observe(state), reward, state.remaining == 0, jnp.zeros((), bool)

    def action_mask(self, state):
        """Return the legal actions."""
        actions = jnp.arange(NUM_ACTIONS, dtype=jnp.int32)
        return (actions != state.cell % NUM_ACTIONS) & (state.remaining > 0)

    def _observe(self, state):
        return jax.nn.one_hot(state.cell, NUM_CELLS, dtype=jnp.float32)


class MaskedChoicesTask(MaskedTask):
    """The task with a second choice, of as many actions and with the same mask, without effect."""

    @property
    def action_space(self):
        """Move on by 1, 2 or 3 cells, and one of 3 more."""
        return gymnasium.spaces.MultiDiscrete([NUM_ACTIONS, NUM_ACTIONS], dtype=np.int32)

    def step(self, state, action, key):
        """Move on by the first choice."""
        return super().step(state, action[0], key)

    def action_mask(self, state):
        """Return the legal actions of both choices."""
        return jnp.tile(super().action_mask(state), 2)


class MaskedEnv(gymnasium.Env):
    """The task for Gymnasium, with the mask in `info`, except at the end of an episode."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (NUM_CELLS,), np.float32)
    action_space = gymnasium.spaces.Discrete(NUM_ACTIONS)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._cell = int(self.np_random.integers(NUM_CELLS))
        self._remaining = int(self.np_random.integers(MIN_STEPS, MAX_STEPS))
        return self._observe(), self._info()

    def step(self, action):
        reward = 1.0 if action != self._cell % NUM_ACTIONS else -1.0
        self._cell = (self._cell + int(action) + 1) % NUM_CELLS
        self._remaining -= 1
        return self._observe(), reward, self._remaining == 0, False, self._info()

    def _observe(self):
        return np.eye(NUM_CELLS, dtype=np.float32)[self._cell]

    def _info(self):
        mask = (np.arange(NUM_ACTIONS) != self._cell % NUM_ACTIONS).astype(np.int8)
        return {"action_mask": mask} if self._remaining else {}


gymnasium.register("Masked-v0", entry_point=MaskedEnv)


def expected_masks(stream):
    """Return the masks `[T + 1, B, A]` that belong to the observations of a stream."""
    cell = stream.observation.argmax(axis=-1)
    legal = np.arange(NUM_ACTIONS) != cell[..., None] % NUM_ACTIONS
    return legal | stream.terminated[..., None]
