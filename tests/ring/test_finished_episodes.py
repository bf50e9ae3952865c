"""Which episodes come from the device to the host: the last of a trajectory, as arrays."""

import jax
import numpy as np
import pytest

from sebulba.types import Trajectory
from tests.rings import follow_episodes
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


@pytest.mark.parametrize(("num_rows", "num_envs"), [(1, 1), (2, 3), (7, 5), (40, 3), (33, 61)])
@pytest.mark.parametrize("max_finished", [1, 6, 10_000])
def test_the_last_finished_episodes_are_kept_in_the_order_of_their_ends(
    num_rows, num_envs, max_finished
):
    env_steps = random_env_steps(num_rows, num_rows, num_envs)
    env_steps.is_first[0] = True
    rows = np.zeros((num_rows, num_envs), np.int32)
    trajectory = Trajectory(env_steps=env_steps, action=rows, extras={})
    num_episodes, episodes, envs = follow_episodes({}, trajectory, max_finished=max_finished)
    expected = episodes_by_hand(env_steps, num_rows)
    assert num_episodes == len(expected)
    assert len(episodes) == min(max_finished, num_rows * num_envs)
    last, num_kept = episodes.last(num_episodes), min(num_episodes, max_finished)
    got = (last.episode_return, last.episode_length, envs[len(envs) - num_kept :])
    assert len(last) == num_kept
    for column, of_all in zip(got, zip(*expected, strict=True), strict=False):
        np.testing.assert_allclose(column, of_all[-num_kept:], rtol=1e-5, atol=1e-5)
    assert jax.tree.leaves(episodes)[0].dtype == np.float32
