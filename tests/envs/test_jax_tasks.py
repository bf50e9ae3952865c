import jax
import numpy as np
import pytest

from sebulba.envs.jax_tasks import Bandit, Catch, ContinuousBandit, Recall

NO_KEY = jax.random.key(0)


def play(task, actions, *, seed=0):
    """Return the observations, rewards and terminations of one episode, as NumPy."""
    state, observation = task.reset(jax.random.key(seed))
    rows = [(observation, 0.0, False)]
    for action in actions:
        action = np.asarray(action, np.float32 if np.ndim(action) else np.int32)
        state, observation, reward, terminated, truncated = task.step(state, action, NO_KEY)
        assert not truncated
        rows.append((observation, float(reward), bool(terminated)))
    observations, rewards, terminations = zip(*rows, strict=True)
    return np.stack(observations), list(rewards), list(terminations)


@pytest.mark.parametrize("seed", range(6))
def test_catch_rewards_a_catch_and_penalises_a_miss(seed):
    task = Catch(rows=4, columns=3)
    boards, rewards, terminations = play(task, [0, 0, 1], seed=seed)  # left to the wall, then stay
    boards = boards.reshape(4, 4, 3)
    ball = int(boards[0, 0].argmax())
    expected = np.zeros((4, 4, 3))
    for t, paddle in enumerate([1, 0, 0, 0]):
        expected[t, t, ball] = expected[t, 3, paddle] = 1.0
    np.testing.assert_array_equal(boards, expected)
    assert rewards == [0.0, 0.0, 0.0, 1.0 if ball == 0 else -1.0]
    assert terminations == [False, False, False, True]


def test_catch_paddle_moves_right_and_stops_at_the_wall():
    boards, _, _ = play(Catch(rows=6, columns=3), [2, 2, 0, 2])
    paddles = boards.reshape(-1, 6, 3)[:, 5].argmax(axis=1)
    np.testing.assert_array_equal(paddles, [1, 2, 2, 1, 2])


def test_catch_drops_the_ball_in_every_column():
    _, boards = jax.vmap(Catch().reset)(jax.random.split(jax.random.key(0), 100))
    assert set(boards.reshape(100, 10, 5)[:, 0].argmax(axis=1).tolist()) == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("seed", range(6))
def test_recall_shows_the_cue_once_then_asks(seed):
    task = Recall(cues=3, delay=2)
    for answer in range(3):
        other = (answer + 1) % 3  # before the query: ignored
        observations, rewards, terminations = play(task, [other, other, answer], seed=seed)
        cue = int(observations[0, :3].argmax())
        expected = np.zeros((4, 4))
        expected[0, cue] = expected[2, 3] = 1.0
        np.testing.assert_array_equal(observations, expected)
        assert rewards == [0.0, 0.0, 0.0, 1.0 if answer == cue else -1.0]
        assert terminations == [False, False, False, True]


def test_recall_by_chance_returns_minus_a_half():
    keys = jax.random.split(jax.random.key(0), 400)
    states, _ = jax.vmap(Recall().reset)(keys)
    returns = np.where(np.asarray(states.cue) == 0, 1.0, -1.0)
    assert abs(returns.mean() + 0.5) < 0.1


@pytest.mark.parametrize("seed", range(6))
def test_bandit_rewards_the_context_modulo_the_actions(seed):
    for action in range(4):
        observations, rewards, terminations = play(Bandit(), [action], seed=seed)
        context = int(observations[0].argmax())
        assert observations[0].sum() == 1.0
        assert rewards == [0.0, 1.0 if action == context % 4 else 0.0]
        assert terminations == [False, True]


@pytest.mark.parametrize("seed", range(6))
def test_continuous_bandit_rewards_proximity_to_the_target(seed):
    for action in (0.0, 1.7, 4.0):
        observations, rewards, terminations = play(ContinuousBandit(), [[action]], seed=seed)
        context = int(observations[0].argmax())
        target = 0.5 + 3.0 * context / 7
        np.testing.assert_allclose(rewards, [0.0, 1.0 - (action - target) ** 2], rtol=1e-5)
        assert terminations == [False, True]


def test_catch_drawn_as_frames_shows_the_cells():
    actions = [2, 2, 0]
    boards, _, _ = play(Catch(rows=4, columns=3), actions)
    frames, _, _ = play(Catch(rows=4, columns=3, pixels=12), actions)
    for board, frame in zip(boards, frames, strict=True):
        assert frame.shape == (12, 12, 1) and frame.dtype == np.uint8
        cells = np.kron(np.reshape(board, (4, 3)), np.ones((3, 4)))
        np.testing.assert_array_equal(frame[:, :, 0], 255 * cells)
