"""Which episodes come from the device to the host, as arrays."""

import numpy as np
import pytest

from sebulba.types import Trajectory
from tests.ring_parts import follow_episodes
from tests.streams import random_env_steps


def episodes_by_hand(env_steps, num_rows):
    """Return `(return, length, environment)` of each episode that ends, in order."""
    num_envs = env_steps.reward.shape[1]
    returns, lengths, is_over = np.zeros(num_envs), np.zeros(num_envs, int), np.ones(num_envs, bool)
    episodes = []
    for t in range(num_rows):
        returns = np.where(is_over, 0, returns) + env_steps.reward[t]
        is_step = ~env_steps.is_first[t] & ~is_over
        lengths = np.where(is_over, 0, lengths) + is_step
        is_over = env_steps.done[t]
        for b in np.flatnonzero(is_over & (lengths > 0)):
            episodes.append((returns[b], lengths[b], b))
    return episodes


@pytest.mark.parametrize(("num_rows", "num_envs"), [(1, 1), (7, 5), (1, 1025), (33, 61), (400, 5)])
@pytest.mark.parametrize("max_finished", [1, 6, 300, 10_000])
def test_the_last_finished_episodes_are_kept_in_the_order_of_their_ends(
    num_rows, num_envs, max_finished
):
    env_steps = random_env_steps(num_rows, num_rows, num_envs)
    env_steps.is_first[0] = True
    rows = np.zeros((num_rows, num_envs), np.int32)
    trajectory = Trajectory(env_steps=env_steps, action=rows, extras={})
    num_episodes, ended = follow_episodes({}, trajectory, max_finished=max_finished)
    expected, episodes = episodes_by_hand(env_steps, num_rows), ended.episodes
    assert num_episodes == len(expected)
    num_kept = min(num_episodes, max_finished) if num_rows * num_envs > 1024 else num_episodes
    got = (episodes.episode_return, episodes.episode_length, ended.env[ended.has_ended])
    assert len(episodes) == num_kept
    for column, of_all in zip(got, zip(*expected[-num_kept:], strict=True), strict=False):
        np.testing.assert_allclose(column, of_all, rtol=1e-5, atol=1e-5)
    assert episodes.episode_return.dtype == np.float32
