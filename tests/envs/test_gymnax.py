"""gymnax under the stream contract; skipped if the extra is not installed."""

import jax
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Tuple

from sebulba.config import EnvConfig
from sebulba.errors import ConfigError

gymnax = pytest.importorskip("gymnax")

from gymnax.environments import spaces as gymnax_spaces  # noqa: E402

from sebulba.envs.gymnax import _gymnasium_space, ids, make  # noqa: E402

# gymnax itself requests 64-bit dtypes and broadcasts ranks.
pytestmark = [
    pytest.mark.usefixtures("lenient_jax"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*dtype.*:UserWarning"),
]


def make_env(name, **options):
    return make(EnvConfig(suite="gymnax", id=name, options=options), num_envs=3, seed=0)


def test_time_limit_truncates_and_the_next_row_is_a_reset():
    environment = make_env("CartPole-v1", max_steps_in_episode=5)
    environment.reset()
    rows = [environment.step(np.array([t % 2] * 3, np.int32)) for t in range(6)]
    assert rows[4].truncated.all() and not rows[4].terminated.any()
    assert rows[5].is_first.all() and not rows[5].reward.any() and not rows[5].truncated.any()
    assert not np.allclose(rows[4].observation, rows[5].observation)


def test_a_fallen_pole_terminates_without_truncating():
    environment = make_env("CartPole-v1")
    environment.reset()
    rows = [environment.step(np.ones(3, np.int32)) for _ in range(12)]
    assert any(row.terminated.any() for row in rows)
    assert not any(row.truncated.any() for row in rows)


def test_fused_stream_equals_the_stepped_one():
    stepped, fused = make_env("MountainCarContinuous-v0"), make_env("MountainCarContinuous-v0")
    stepped.reset(), fused.reset()
    traceable = fused.fused()
    state = traceable.state
    for _ in range(4):
        action = np.full((3, 1), 0.5, np.float32)
        state, row = traceable.step(state, action)
        jax.tree.map(
            lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), row, stepped.step(action)
        )


@pytest.mark.parametrize("name", ["Breakout-MinAtar", "Pendulum-v1", "DeepSea-bsuite"])
def test_other_environments_step(name):
    environment = make_env(name)
    environment.reset()
    shape = (3, *environment.spec.action_space.shape)
    row = environment.step(np.zeros(shape, environment.spec.action_space.dtype))
    assert row.reward.dtype == np.float32
    assert not row.is_first.any()


def test_each_space_of_gymnax_is_one_of_gymnasium():
    space = gymnax_spaces.Dict(
        {
            "a": gymnax_spaces.Discrete(3),
            "b": gymnax_spaces.Tuple(
                [gymnax_spaces.Box(-2, 2, (2,), np.int32), gymnax_spaces.Box(0.0, 1.0, ())]
            ),
        }
    )
    expected = Tuple([Box(-2, 2, (2,), np.int32), Box(0.0, 1.0, ())])
    assert _gymnasium_space(space) == Dict(a=Discrete(3), b=expected)


def test_a_grid_is_drawn_with_a_colour_per_plane():
    environment = make_env("Breakout-MinAtar")
    row = environment.reset()
    frame = environment.render()
    assert frame.shape == (10, 10, 3) and frame.dtype == np.uint8
    planes = row.observation[0]
    np.testing.assert_array_equal(frame.any(axis=-1), planes.any(axis=-1))
    paddle = frame[planes[..., 0] == 1]
    bricks = frame[(planes[..., 3] == 1) & ~planes[..., :3].any(axis=-1)]  # the ball is on top
    assert len(np.unique(bricks, axis=0)) == 1 and not (paddle == bricks[0]).all()


def test_a_vector_cannot_be_drawn():
    environment = make_env("CartPole-v1")
    environment.reset()
    with pytest.raises(ConfigError, match="cannot be rendered"):
        environment.render()


def test_unknown_names_suggest_similar_ones():
    assert "CartPole-v1" in ids()
    with pytest.raises(ConfigError, match="did you mean CartPole-v1"):
        make_env("CartPole-v2")
    with pytest.raises(ConfigError, match="did you mean max_steps_in_episode"):
        make_env("CartPole-v1", max_steps_in_episodes=3)
