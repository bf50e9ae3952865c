"""The room: steps, walls, and the end of its episodes."""

import jax
import jax.numpy as jnp
import pytest

from sebulba.envs.jax_rooms import Room
from sebulba.errors import ConfigError

KEY = jax.random.key(0)


def walk(room, actions):
    """Returns where one stands after each action, and the flags that came with it."""
    step = jax.jit(room.step)
    state, _ = room.reset(KEY)
    places, ends = [], []
    for action in actions:
        state, observation, reward, terminated, truncated = step(state, jnp.int32(action), KEY)
        assert observation.sum() == 1 and reward == 0 and not terminated
        places.append(divmod(int(observation.argmax()), room.size))
        ends.append(bool(truncated))
    return places, ends


def test_steps_go_where_they_are_named_after_and_end_at_walls():
    places, _ = walk(Room(size=3, steps=10), [0, 0, 1, 2, 2, 3])
    assert places == [(0, 1), (0, 1), (1, 1), (1, 0), (1, 0), (1, 1)]


def test_an_episode_is_truncated_after_its_steps():
    assert walk(Room(size=3, steps=3), [0, 1, 2])[1] == [False, False, True]


def test_a_room_without_room_is_refused():
    with pytest.raises(ConfigError, match=r"env\.options\.size: expected at least 1, got 0"):
        Room(size=0)
