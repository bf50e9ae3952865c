import jax
import numpy as np
import pytest
from gymnasium.spaces import Box

from sebulba.config import EnvConfig
from sebulba.envs import make_environment
from sebulba.envs.envpool import _native_space
from sebulba.envs.envpool_import import envpool
from sebulba.errors import ConfigError
from tests.envs.cases import assert_same, play, random_actions
from tests.subprocesses import run_python


def make(name, *, num_envs=2, **options):
    config = EnvConfig(suite="envpool", id=name, options=options)
    return make_environment(config, num_envs=num_envs, seed=1)


@pytest.mark.parametrize("name", ["HalfCheetah-v5", "WalkerWalk-v1"])
def test_envpool_narrows_64_bit_environments_also_when_fused(name):
    # Inside jit EnvPool writes 64-bit arrays, infos included, past the end of 32-bit buffers.
    actions = np.random.default_rng(0).uniform(-1, 1, (12, 2, 6)).astype(np.float32)
    environment = make(name, max_episode_steps=5)
    assert environment.spec.action_space.dtype == np.float32
    stream = play(environment, actions)
    specs, leaves = map(jax.tree.leaves, (environment.spec.observation, stream.observation))
    for spec, leaf in zip(specs, leaves, strict=True):
        assert spec.dtype == leaf.dtype == np.float32
        assert leaf.shape == (13, 2, *spec.shape)
    again = make(name, max_episode_steps=5)
    assert_same(play(again, actions, fused=True), stream)
    np.testing.assert_array_equal(stream.truncated[:, 0].nonzero()[0], [5, 11])
    environment.close()
    again.close()


@pytest.mark.parametrize("fused", [False, True])
def test_envpool_reset_rows_of_dm_control_have_no_reward(fused):
    environment = make("CartpoleBalance-v1", max_episode_steps=3)
    stream = play(environment, np.zeros((9, 2, 1), np.float32), fused=fused)
    assert stream.is_first[4].all()
    assert stream.reward.dtype == np.float32
    np.testing.assert_array_equal(stream.reward > 0.0, ~stream.is_first)
    environment.close()


def test_envpool_dict_observations_stay_dicts():
    environment = make("WalkerWalk-v1")
    assert set(environment.spec.observation) == {"orientations", "height", "velocity"}
    shape = environment.spec.observation["orientations"].shape
    assert environment.reset().observation["orientations"].shape == (2, *shape)
    environment.close()


def test_envpool_takes_matrices_of_actions_from_vectors():
    environment, again = make("SearchAndRescue-v0"), make("SearchAndRescue-v0")
    assert environment.spec.action_space == Box(-1.0, 1.0, (4,), np.float32)
    actions = random_actions(environment.spec.action_space, num_envs=2, num_steps=6)
    stream = play(environment, actions)
    assert_same(play(again, actions, fused=True), stream)
    environment.close()
    again.close()


def test_envpool_turns_integer_boxes_into_multi_discrete():
    environment = make("RubiksCube-v0")
    assert environment.spec.action_space.dtype == np.int32
    environment.reset()
    environment.step(np.stack([environment.spec.action_space.sample() for _ in range(2)]))
    environment.close()


def test_envpool_episodic_life_ends_the_stream_at_a_life_and_the_episode_at_the_game():
    environment = make("Breakout-v5", episodic_life=True, noop_max=1)
    actions = random_actions(environment.spec.action_space, num_envs=2, num_steps=400)
    stream = play(environment, actions)
    games = stream.episode_over.sum()
    assert games >= 1
    assert stream.terminated.sum() >= 5 * games  # Breakout has five lives.
    assert (stream.terminated | stream.truncated)[stream.episode_over].all()
    assert not stream.episode_over[stream.is_first].any()
    again = make("Breakout-v5", episodic_life=True, noop_max=1)
    assert_same(play(again, actions, fused=True), stream)
    environment.close()
    again.close()


def test_envpool_episodic_life_ends_the_episode_at_a_truncation():
    environment = make("Breakout-v5", episodic_life=True, noop_max=1, max_episode_steps=3)
    space = environment.spec.action_space
    stream = play(environment, random_actions(space, num_envs=2, num_steps=8))
    np.testing.assert_array_equal(stream.truncated[:, 0].nonzero()[0], [3, 7])
    np.testing.assert_array_equal(stream.episode_over, stream.truncated)
    environment.close()


def test_envpool_without_episodic_life_has_no_episode_over():
    environment = make("Breakout-v5")
    assert environment.reset().episode_over is None
    assert environment.step(np.zeros(2, np.int32)).episode_over is None
    environment.close()


def test_envpool_reads_numeric_limits_as_no_bound():
    limits = np.finfo(np.float64)
    low, high = np.array([limits.tiny, -1.0]), np.array([limits.max, 1.0])
    space = _native_space(Box(low, high, dtype=np.float64), np.dtype(np.float64))
    np.testing.assert_array_equal(space.low, [-np.inf, -1.0])
    np.testing.assert_array_equal(space.high, [np.inf, 1.0])


def test_envpool_fused_step_outlives_close():
    environment = make("CartPole-v1")
    environment.reset()
    fused = environment.fused()
    environment.close()
    _, row = jax.jit(fused.step)(fused.state, np.zeros(2, np.int32))
    np.testing.assert_array_equal(row.reward, [1.0, 1.0])


def test_pools_that_are_alike_are_stepped_by_one_function_each_with_its_own_environments():
    def started(seed, num_envs=2):
        config = EnvConfig(suite="envpool", id="CartPole-v1")
        environment = make_environment(config, num_envs=num_envs, seed=seed)
        environment.reset()
        return environment

    action = np.ones(2, np.int32)
    expected = [started(seed).step(action) for seed in (1, 2)]
    first, second, other = (each.fused() for each in (started(1), started(2), started(3, 4)))
    assert first.step is second.step is not other.step
    step = jax.jit(first.step)
    for fused, row in zip((first, second), expected, strict=True):
        state, got = step(fused.state, action)
        np.testing.assert_array_equal(got.observation, row.observation)
        np.testing.assert_array_equal(state.handle, fused.state.handle)
    assert step._cache_size() == 1
    later = started(1).fused()
    assert later.step is not first.step
    np.testing.assert_array_equal(
        later.step(later.state, action)[1].observation, expected[0].observation
    )


_DRAW = """
import sys
from sebulba.config import EnvConfig
from sebulba.envs import make_environment

make_environment(EnvConfig(suite="envpool", id="CartPole-v1"), num_envs=1, seed=0).close()
assert "matplotlib" not in sys.modules
config = EnvConfig(suite="envpool", id="Jumanji/Snake-v1", options={"render_mode": "rgb_array"})
environment = make_environment(config, num_envs=1, seed=0)
environment.reset()
assert environment.render().any()
assert "matplotlib" in sys.modules
"""


@pytest.mark.slow
def test_envpool_imports_matplotlib_when_a_game_draws_with_it():
    result = run_python("-c", _DRAW)
    assert result.returncode == 0, result.stderr


def test_a_missing_opengl_library_is_named_with_its_package(monkeypatch):
    def make_gymnasium(*arguments, **options):
        raise ImportError("libEGL.so.1: cannot open shared object file: No such file or directory")

    monkeypatch.setattr(envpool, "make_gymnasium", make_gymnasium)
    with pytest.raises(ConfigError, match=r"libEGL\.so\.1 for 'Ant-v5'.*apt-get install libegl1"):
        make("Ant-v5")


_SUITES = """
import sys
from sebulba.config import EnvConfig
from sebulba.envs import make_environment
from sebulba.envs.envpool_import import envpool

suites = {name.rpartition(".")[0] for name in sys.modules if name.endswith(".registration")}
libraries = lambda: {name.split(".")[1] for name in sys.modules if name.endswith("_envpool")}
assert len(suites) > 10 and "Ant-v5" in envpool.list_all_envs(), suites
make_environment(EnvConfig(suite="envpool", id="CartPole-v1"), num_envs=1, seed=0).close()
assert libraries() == {"classic_control", "python"}, libraries()
make_environment(EnvConfig(suite="envpool", id="FrozenLake-v1"), num_envs=1, seed=0).close()
assert libraries() == {"classic_control", "toy_text", "python"}, libraries()
assert not hasattr(sys.modules["envpool.box2d"], "no_such_name")
assert libraries() == {"box2d", "classic_control", "toy_text", "python"}, libraries()
"""


def test_only_the_suites_of_envpool_that_are_used_load_their_libraries():
    result = run_python("-c", _SUITES)
    assert result.returncode == 0, result.stderr
