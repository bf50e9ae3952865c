"""Craftax under the stream contract; skipped if the extra is not installed."""

import jax
import numpy as np
import pytest

from sebulba.config import EnvConfig
from sebulba.errors import ConfigError

pytest.importorskip("craftax")

from sebulba.envs.craftax import ids, make

# Craftax itself requests 64-bit dtypes and broadcasts ranks.
pytestmark = [
    pytest.mark.usefixtures("lenient_jax"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*dtype.*:UserWarning"),
    pytest.mark.slow,  # its worlds compile for a minute
]
CLASSIC = "Craftax-Classic-Symbolic-v1"
NOTHING = np.zeros(2, np.int32)


def make_env(name=CLASSIC, **options):
    return make(EnvConfig(suite="craftax", id=name, options=options), num_envs=2, seed=0)


def test_a_truncation_has_the_final_observation_and_the_next_row_is_a_reset():
    short, long = make_env(max_episode_steps=4), make_env()
    first, _ = short.reset(), long.reset()
    for _ in range(4):
        row, same = short.step(NOTHING), long.step(NOTHING)
    assert row.truncated.all() and not row.terminated.any() and not same.done.any()
    np.testing.assert_array_equal(row.observation, same.observation)
    reset = short.step(NOTHING)
    assert reset.is_first.all() and not reset.reward.any() and not reset.truncated.any()
    assert (reset.observation != first.observation).any(axis=-1).all()  # another world


def test_deaths_are_terminations_and_the_default_limit_is_that_of_craftax():
    environment = make_env(zombie_health=100, spawn_zombie_base_chance=1.0)
    assert environment.settings()["max_episode_steps"] == 10_000
    environment.reset()
    rows = jax.tree.map(lambda *x: np.stack(x), *[environment.step(NOTHING) for _ in range(150)])
    assert rows.terminated.any() and not rows.truncated.any()


def test_fused_stream_equals_the_stepped_one():
    stepped, fused = make_env(max_episode_steps=3), make_env(max_episode_steps=3)
    stepped.reset(), fused.reset()
    traceable = fused.fused()
    actions = np.random.default_rng(0).integers(17, size=(7, 2)).astype(np.int32)
    _, rows = jax.jit(lambda s, a: jax.lax.scan(traceable.step, s, a))(traceable.state, actions)
    expected = jax.tree.map(lambda *x: np.stack(x), *map(stepped.step, actions))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6), rows, expected)


def test_unknown_names_and_options_are_refused():
    assert CLASSIC in ids()
    with pytest.raises(ConfigError, match="did you mean Craftax-Classic-Symbolic-v1"):
        make_env("Craftax-Classic-Symbolik-v1")
    with pytest.raises(ConfigError, match="did you mean zombie_health"):
        make_env(zombie_helth=1)
    with pytest.raises(ConfigError, match="use max_episode_steps"):
        make_env(max_timesteps=5)
