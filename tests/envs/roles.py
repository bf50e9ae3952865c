"""Three players that see the same, of which one has to choose something else than the others."""

import dataclasses

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

NUM_LIGHTS = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Roles:
    """All see which light is on: players 0 and 2 are paid for it, player 1 for the next one.

    An episode is one step. Players that share a network have a mean return of 2/3 at best.
    """

    num_players: int = 3

    @property
    def observation(self):
        """One-hot light."""
        return jax.ShapeDtypeStruct((NUM_LIGHTS,), np.float32)

    @property
    def action_space(self):
        return gymnasium.spaces.Discrete(NUM_LIGHTS)

    def reset(self, key):
        light = jax.random.randint(key, (), 0, NUM_LIGHTS, jnp.int32)
        return light, self._observe(light)

    def step(self, light, action, key):
        right = (light + jnp.array([0, 1, 0], jnp.int32)) % NUM_LIGHTS
        over = jnp.ones(3, bool)
        return light, self._observe(light), (action == right).astype(jnp.float32), over, ~over

    def _observe(self, light):
        seen = jax.nn.one_hot(light, NUM_LIGHTS, dtype=jnp.float32)
        return jnp.broadcast_to(seen, (3, NUM_LIGHTS))
