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


class LeaversInPython:
    """The same in Python, with the interface of PettingZoo's parallel environments."""

    def __init__(self, render_mode=None, has_masks=False, late=None):
        self.metadata = {"name": "leavers", "render_modes": ["rgb_array"]}
        self.possible_agents = [f"player_{number}" for number in range(NUM_PLAYERS)]
        self.agents = []
        self.render_mode = render_mode
        self._has_masks = has_masks
        self._late_player = late

    def observation_space(self, player):
        numbers = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float32)
        if not self._has_masks:
            return numbers
        mask = gymnasium.spaces.MultiBinary(NUM_ACTIONS)
        return gymnasium.spaces.Dict({"observation": numbers, "action_mask": mask})

    def action_space(self, player):
        return gymnasium.spaces.Discrete(NUM_ACTIONS)

    def reset(self, seed=None, options=None):
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self.agents = self.possible_agents.copy()
        self._elapsed, self._late = 0, int(self._rng.integers(4))
        self._numbers = dict(zip(self.agents, self._rng.random(NUM_PLAYERS), strict=True))
        here = [player for player in self.agents if player != self._late_player]
        return {player: self._observe(player, 0) for player in here}, {}

    def step(self, actions):
        assert set(actions) == set(self.agents)
        self._elapsed += 1
        observations = {player: self._observe(player, actions[player]) for player in self.agents}
        rewards = {player: 1.0 + 0.1 * int(actions[player]) for player in self.agents}
        leaves = {
            player: self._elapsed == FIRST_LEAVES + 2 * int(player[-1]) + self._late
            for player in self.agents
        }
        terminated = {player: leaves[player] and player[-1] != "1" for player in self.agents}
        truncated = {player: leaves[player] and player[-1] == "1" for player in self.agents}
        self.agents = [player for player in self.agents if not leaves[player]]
        return observations, rewards, terminated, truncated, {}

    def render(self):
        return np.full((2, 2, 3), self._elapsed, np.uint8)

    def close(self):
        pass

    def _observe(self, player, action):
        numbers = np.array([self._numbers[player], self._elapsed, int(action)], np.float32)
        if not self._has_masks:
            return numbers
        mask = np.arange(NUM_ACTIONS) <= self._elapsed
        return {"observation": numbers, "action_mask": mask.astype(np.int8)}
