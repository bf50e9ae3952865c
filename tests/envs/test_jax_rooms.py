"""The room task: moves, walls, truncation."""

import jax
import jax.numpy as jnp
import pytest

from sebulba.envs.jax_rooms import Room
from sebulba.errors import ConfigError

KEY = jax.random.key(0)


def walk(room, actions):
    """Return the agent's cell and the truncation flag after each action."""
    step = jax.jit(room.step)
    state, _ = room.reset(KEY)
    cells, ends = [], []
    for action in actions:
        state, observation, reward, terminated, truncated = step(state, jnp.int32(action), KEY)
        assert observation.sum() == 1 and reward == 0 and not terminated
        cells.append(divmod(int(observation.argmax()), room.size))
        ends.append(bool(truncated))
    return cells, ends


def test_actions_move_the_agent_and_walls_block():
    cells, _ = walk(Room(size=3, steps=10), [0, 0, 1, 2, 2, 3])
    assert cells == [(0, 1), (0, 1), (1, 1), (1, 0), (1, 0), (1, 1)]


def test_an_episode_is_truncated_after_the_given_steps():
    assert walk(Room(size=3, steps=3), [0, 1, 2])[1] == [False, False, True]


def test_an_invalid_size_is_refused():
    with pytest.raises(ConfigError, match=r"env\.options\.size: expected at least 1, got 0"):
        Room(size=0)
