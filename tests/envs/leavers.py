"""Players that leave at known steps, as a task in JAX and as a parallel environment in Python.

Player `p` of an episode leaves with its step `6 + 2p + r`, where `r` in 0 … 3 is drawn for each
episode: player 1 by truncation, the others by termination. Afterwards the task goes on with numbers
that nobody may see.
"""

import dataclasses

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

NUM_PLAYERS = 3
FIRST_LEAVES = 6
NUM_ACTIONS = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class Leavers:
    """See the top of the file."""

    num_players: int = NUM_PLAYERS

    @property
    def observation(self):
        """A random number of each player, its step, and its last action."""
        return jax.ShapeDtypeStruct((3,), np.float32)

    @property
    def action_space(self):
        return gymnasium.spaces.Discrete(NUM_ACTIONS)

    def reset(self, key):
        late_key, number_key = jax.random.split(key)
        state = {
            "late": jax.random.randint(late_key, (), 0, 4, jnp.int32),
            "number": jax.random.uniform(number_key, (self.num_players,)),
            "elapsed": jnp.zeros((), jnp.int32),
        }
        return state, self._observe(state, jnp.zeros(self.num_players, jnp.int32))

    def step(self, state, action, key):
        del key
        state = state | {"elapsed": state["elapsed"] + jnp.int32(1)}
        player = jnp.arange(self.num_players)
        leaves = state["elapsed"] == FIRST_LEAVES + 2 * player + state["late"]
        reward = 1.0 + 0.1 * action.astype(jnp.float32)
        return (
            state,
            self._observe(state, action),
            reward,
            leaves & (player != 1),
            leaves & (player == 1),
        )

    def render(self, state):
        """Return a frame that shows the step."""
        return jnp.full((2, 2, 3), state["elapsed"].astype(jnp.uint8))

    def _observe(self, state, action):
        elapsed = jnp.full(self.num_players, state["elapsed"].astype(jnp.float32))
        return jnp.stack([state["number"], elapsed, action.astype(jnp.float32)], axis=-1)
