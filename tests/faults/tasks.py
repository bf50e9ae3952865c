"""Tasks in JAX that fail as they are told."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.spaces import Discrete

from sebulba.pytree import pytree_dataclass

EPISODE_LENGTH = 7


@pytree_dataclass
class FaultyState:
    """How far it is, and whether it is one that fails."""

    steps: jax.Array  # [] int32
    fails: jax.Array  # [] bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class FaultyTask:
    """A task inside `jit` with the same faults; the share `chance` of all episodes has one."""

    fault: str = "none"
    chance: float = 1.0
    at_step: int = 3

    @property
    def observation(self):
        return jax.ShapeDtypeStruct((3,), np.float32)

    @property
    def action_space(self):
        return Discrete(2)

    def reset(self, key):
        fails = jax.random.uniform(key) < self.chance
        return FaultyState(steps=jnp.zeros((), jnp.int32), fails=fails), jnp.zeros(3)

    def step(self, state, action, key):
        state = FaultyState(steps=state.steps + 1, fails=state.fails)
        now = state.fails & (state.steps == self.at_step)
        observation = jnp.where(now & (self.fault == "nan"), jnp.nan, jnp.ones(3))
        if self.fault == "step":
            flag = jax.ShapeDtypeStruct((), np.bool_)
            over = jax.pure_callback(_raise_if, flag, now, vmap_method="sequential")
        else:
            over = jnp.zeros((), bool)
        over = over | (state.steps == EPISODE_LENGTH)
        return state, observation, jnp.ones(()), over, jnp.zeros((), bool)


def _raise_if(now):
    if now:
        raise ArithmeticError("the pole is off")
    return np.zeros((), bool)
