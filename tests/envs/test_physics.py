"""The simulated physics, against a single Gymnasium environment set to each state."""

import gymnasium
import numpy as np

from tests.envs.cases import (
    CASES,
    LIMIT,
    cartpole_cases,
    over,
    random_stream,
)


@cartpole_cases
def test_cartpole_rows_match_a_single_environment(case):
    stream, actions = random_stream(case)
    single = gymnasium.make("CartPole-v1").unwrapped
    single.reset()
    for t, b in np.argwhere(~stream.done[:-1]):
        single.state = stream.observation[t, b].astype(np.float64)
        single.steps_beyond_terminated = None
        observation, reward, terminated, _, _ = single.step(int(actions[t, b]))
        np.testing.assert_allclose(stream.observation[t + 1, b], observation, atol=1e-5)
        assert stream.reward[t + 1, b] == reward
        assert stream.terminated[t + 1, b] == terminated
    single.close()


@cartpole_cases
def test_cartpole_final_observations_are_out_of_bounds_and_first_ones_are_not(case):
    stream, _ = random_stream(case)
    angle = np.abs(stream.observation[..., 2])
    assert (angle[stream.done] > 0.2095).all()
    assert (angle[stream.is_first] <= 0.05).all()


def test_envpool_and_gymnasium_have_the_same_flags():
    flags = [
        (stream.is_first, stream.terminated, stream.truncated, stream.reward)
        for name in ("envpool", "gymnasium")
        for stream, _ in [random_stream(CASES[name], max_episode_steps=LIMIT)]
    ]
    np.testing.assert_array_equal(flags[0], flags[1])


@over(lambda case: case.id == "Pendulum-v1")
def test_continuous_actions_are_scaled_to_the_bounds_of_the_environment(case):
    """Torque ranges from -2 to 2 and affects both the reward and the state."""
    stream, actions = random_stream(case)
    single = gymnasium.make("Pendulum-v1").unwrapped
    single.reset()
    checked = 0
    for t, b in np.argwhere(~stream.done[:-1]):
        cosine, sine, velocity = stream.observation[t, b].astype(np.float64)
        single.state = np.array([np.arctan2(sine, cosine), velocity])
        observation, reward, *_ = single.step(2.0 * actions[t, b])
        np.testing.assert_allclose(stream.observation[t + 1, b], observation, atol=1e-4)
        np.testing.assert_allclose(stream.reward[t + 1, b], reward, atol=1e-3)
        checked += 1
    assert checked > 100
    single.close()
