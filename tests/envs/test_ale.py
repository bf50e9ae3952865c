"""ALE: raw rewards, lives, and error messages."""

import jax
import numpy as np
import pytest

from sebulba.config import EnvConfig
from sebulba.envs import make_environment
from sebulba.errors import ConfigError
from tests.envs.cases import assert_same, play, random_actions

ale = pytest.importorskip("sebulba.envs.ale", reason="needs the extra atari")

NUM_ENVS = 2


def make(name="breakout", **options):
    config = EnvConfig(suite="ale", id=name, options={"img_height": 42, "img_width": 42} | options)
    return make_environment(config, num_envs=NUM_ENVS, seed=3)


def play_random(environment, num_steps):
    space = environment.spec.action_space
    return play(environment, random_actions(space, num_envs=NUM_ENVS, num_steps=num_steps))


@pytest.fixture(scope="module")
def stream():
    environment = make(episodic_life=True)
    yield play_random(environment, 300)
    environment.close()


def test_ale_episodic_life_ends_the_stream_at_a_life_and_the_episode_at_the_game(stream):
    games = stream.episode_over.sum(axis=0)
    assert (games >= 1).all()
    assert (stream.terminated.sum(axis=0) >= 5 * games).all()  # Breakout has five lives.
    assert stream.done[stream.episode_over].all()
    assert not stream.episode_over[stream.is_first].any()


def test_ale_episodic_life_continues_the_game_after_a_life(stream):
    """The wall of bricks keeps its gaps after a life, and is complete again after the game."""
    newest = stream.observation[:, :, -1].astype(np.int32)
    bricks = newest[:, :, 10:18].sum(axis=(-2, -1))
    (env,) = stream.reward[:, :].sum(axis=0).argmax(keepdims=True)
    lost = stream.done[:, env] & ~stream.episode_over[:, env]
    full = bricks[0, env]
    after_life = bricks[1:, env][lost[:-1]]
    after_game = bricks[1:, env][stream.episode_over[:-1, env]]
    assert (after_life < full).any()
    np.testing.assert_array_equal(after_game, full)


def test_ale_without_episodic_life_has_no_episode_over():
    environment = make()
    assert environment.reset().episode_over is None
    assert environment.step(np.zeros(NUM_ENVS, np.int32)).episode_over is None
    environment.close()


def test_ale_rewards_are_raw():
    """The lowest invaders of Space Invaders give 5, which ALE by default clips to 1."""
    environment = make("space_invaders")
    rewards = play_random(environment, 150).reward
    assert rewards.dtype == np.float32
    assert rewards.max() >= 5
    environment.close()


def test_ale_settings_include_defaults_and_options():
    environment = make(noop_max=7)
    settings = environment.settings()
    assert (settings["noop_max"], settings["frameskip"]) == (7, 4)
    assert settings["repeat_action_probability"] == 0.0
    assert settings["reward_clipping"] is False
    assert settings["autoreset_mode"] == "NextStep"
    assert settings["episodic_life"] is False
    assert "num_threads" not in settings
    environment.close()


def test_ale_continuous_actions_are_scaled_and_include_a_no_op():
    environment = make(continuous=True, episodic_life=True)
    space = environment.spec.action_space
    assert space.shape == (3,) and space.low.tolist() == [-1, -1, -1]
    environment.reset()
    row = environment.step(np.zeros((NUM_ENVS, 3), np.float32))
    assert row.reward.shape == (NUM_ENVS,)
    environment.close()


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("Pong-v5", {}, "env.id: ALE has no game 'Pong-v5'; did you mean pong"),
        ("ALE/MsPacman-v5", {}, "did you mean ms_pacman"),
        ("combat", {}, "needs two players"),
        ("pong", {"frame_skip": 4}, "env.options: ALE has no 'frame_skip'; did you mean frameskip"),
        ("pong", {"frameskip": 0}, "ALE refuses env.id 'pong'.*Invalid frameskip of 0"),
        ("pong", {"num_envs": 3}, "env.options.num_envs: .*actor.num_envs"),
        ("pong", {"reward_clipping": True}, "env.options.reward_clipping: .*the agent clips"),
        ("pong", {"life_loss_info": True}, "env.options.life_loss_info: .*episodic_life"),
        ("pong", {"autoreset_mode": "SameStep"}, "env.options.autoreset_mode"),
        ("backgammon", {"episodic_life": True}, "full_action_space"),
    ],
)
def test_ale_errors_name_what_to_change(name, options, message):
    with pytest.raises(ConfigError, match=message):
        make_environment(
            EnvConfig(suite="ale", id=name, options=options), num_envs=NUM_ENVS, seed=3
        )


def test_ale_ids_are_single_player_games():
    assert {"pong", "breakout", "ms_pacman"} <= set(ale.ids())
    assert "combat" not in ale.ids()


def test_ale_compiled_step_serves_two_pools():
    """The handle in the state selects the pool."""
    pools = [make(), make()]
    rows = [pool.reset() for pool in pools]
    fused = [pool.fused() for pool in pools]
    step = jax.jit(fused[0].step)
    states = [each.state for each in fused]
    action = np.ones(NUM_ENVS, np.int32)
    for _ in range(4):
        states[0], rows[0] = step(states[0], action)
    for _ in range(4):
        states[1], rows[1] = step(states[1], action)
    assert_same(rows[1], rows[0])
    for pool in pools:
        pool.close()
