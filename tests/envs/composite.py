"""A small task with dict observations and a MultiDiscrete action, in JAX and NumPy.

The observation determines the right choice of each component. Episodes take 6 to 11 steps.
"""

import dataclasses

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from sebulba.pytree import pytree_dataclass

NUM_CELLS = 5
CHOICES = (2, 3)
MIN_STEPS, MAX_STEPS = 6, 12  # the upper bound is exclusive


@pytree_dataclass
class CompositeState:
    """The current question and the remaining steps."""

    cell: jax.Array  # [] int32
    joints: jax.Array  # [2]
    remaining: jax.Array  # [] int32


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompositeTask:
    """Reward ½ for choosing whether `joints[0]` is positive, ½ for choosing `cell // 2`."""

    @property
    def observation(self):
        """An integer and a vector."""
        return {
            "cell": jax.ShapeDtypeStruct((), np.int32),
            "joints": jax.ShapeDtypeStruct((2,), np.float32),
        }

    @property
    def action_space(self):
        """One choice per question."""
        return gymnasium.spaces.MultiDiscrete(CHOICES)

    def reset(self, key):
        """Ask the first question."""
        key, length_key = jax.random.split(key)
        remaining = jax.random.randint(length_key, (), MIN_STEPS, MAX_STEPS, jnp.int32)
        return _ask(key, remaining)

    def step(self, state, action, key):
        """Score the answer and ask the next question."""
        right = jnp.stack([(state.joints[0] > 0.0).astype(jnp.int32), state.cell // 2])
        reward = jnp.mean((action == right).astype(jnp.float32))
        state, observation = _ask(key, state.remaining - 1)
        return state, observation, reward, state.remaining == 0, jnp.zeros((), bool)


def _ask(key, remaining):
    cell_key, joints_key = jax.random.split(key)
    cell = jax.random.randint(cell_key, (), 0, NUM_CELLS, jnp.int32)
    # Exact in float32, so that the stream has the same bits in every program that computes it.
    joints = 4.0 * jax.random.uniform(joints_key, (2,)) - 2.0
    state = CompositeState(cell=cell, joints=joints, remaining=remaining)
    return state, {"cell": cell, "joints": joints}


class CompositeEnv(gymnasium.Env):
    """The same task for Gymnasium."""

    observation_space = gymnasium.spaces.Dict(
        {
            "cell": gymnasium.spaces.Discrete(NUM_CELLS),
            "joints": gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64),
        }
    )
    action_space = gymnasium.spaces.MultiDiscrete(CHOICES)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._remaining = self.np_random.integers(MIN_STEPS, MAX_STEPS)
        return self._ask(), {}

    def step(self, action):
        right = [self._joints[0] > 0, self._cell // 2]
        self._remaining -= 1
        return self._ask(), float(np.mean(action == right)), bool(self._remaining == 0), False, {}

    def _ask(self):
        self._cell = self.np_random.integers(NUM_CELLS)
        self._joints = self.np_random.normal(size=2)
        return {"cell": self._cell, "joints": self._joints}


gymnasium.register("Composite-v0", entry_point=CompositeEnv)
