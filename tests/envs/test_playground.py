"""MuJoCo Playground under the stream contract; skipped if the extra is not installed."""

import subprocess

import jax
import numpy as np
import pytest

from sebulba.config import EnvConfig
from sebulba.errors import ConfigError

pytest.importorskip("mujoco_playground")

from sebulba.envs import playground
from sebulba.envs.playground import ids, make

pytestmark = [
    pytest.mark.usefixtures("lenient_jax"),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.slow,  # MJX compiles for a minute
]
LEFT = np.full((2, 1), -1.0, np.float32)


def make_env(name="CartpoleBalance", **options):
    return make(EnvConfig(suite="playground", id=name, options=options), num_envs=2, seed=0)


def test_a_truncation_has_the_final_observation_and_the_next_row_is_a_reset():
    short, long = make_env(max_episode_steps=3), make_env()
    assert long.settings()["max_episode_steps"] == 1_000
    first, _ = short.reset(), long.reset()
    for _ in range(3):
        row, same = short.step(LEFT), long.step(LEFT)
    assert row.truncated.all() and not row.terminated.any() and not same.done.any()
    np.testing.assert_allclose(row.observation, same.observation, atol=1e-6)
    reset = short.step(LEFT)
    assert reset.is_first.all() and not reset.reward.any() and not reset.truncated.any()
    assert (reset.observation != first.observation).any(axis=-1).all()  # another start
    actions = np.full((4, 2, 1), 0.5, np.float32)
    traceable = short.fused()
    _, rows = jax.jit(lambda s, a: jax.lax.scan(traceable.step, s, a))(traceable.state, actions)
    expected = jax.tree.map(lambda *x: np.stack(x), *map(short.step, actions))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5), rows, expected)


def test_agents_do_not_see_what_only_critics_may():
    try:
        environment = make_env("Go1JoystickFlatTerrain")
    except ConfigError as error:
        if "downloads" not in str(error):
            raise
        pytest.skip(str(error))
    assert environment.spec.observation == jax.ShapeDtypeStruct((48,), np.float32)
    assert environment.spec.action_space.shape == (12,)


def test_a_model_that_cannot_be_downloaded_is_refused(monkeypatch):
    def load(name, config_overrides):
        raise subprocess.CalledProcessError(128, ["git", "clone"])

    monkeypatch.setattr(playground.registry, "load", load)
    with pytest.raises(ConfigError, match=r"downloads the models of 'CartpoleBalance'.* git at"):
        make_env()


def test_unknown_names_and_options_are_refused():
    assert "CartpoleBalance" in ids()
    with pytest.raises(ConfigError, match="did you mean CartpoleBalance"):
        make_env("CartpoleBalanse")
    with pytest.raises(ConfigError, match=r"env.options: MuJoCo Playground does not create .*dtt"):
        make_env(dtt=1)
