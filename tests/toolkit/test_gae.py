"""Generalised advantages against published numbers, and against their definition."""

import numpy as np
import pytest

from tests.streams import runs_of_valid
from tests.toolkit.return_streams import STREAM, all_valid, array, gae, random_stream


def gae_by_definition(rewards, discounts, valid, values, lambda_):
    rewards, discounts, values = (np.asarray(x, np.float64) for x in (rewards, discounts, values))
    advantages = np.zeros_like(rewards)
    for b, start, stop in runs_of_valid(np.asarray(valid)):
        for s in range(start, stop):
            for t in range(s, stop):
                td_error = rewards[t, b] + discounts[t, b] * values[t + 1, b] - values[t, b]
                advantages[s, b] += np.prod(lambda_ * discounts[s:t, b]) * td_error
    return advantages


@pytest.mark.parametrize(
    ("lambda_", "advantages"),
    [
        (1.0, [-1.451188, -4.455746, 2.539651, 0.5249, -0.49]),
        (0.7, [-0.676979, -5.248167, 2.484608, 0.67043, -0.49]),
        (0.4, [0.567319, -6.042124, 2.34312, 0.81596, -0.49]),
    ],
)
def test_gae_matches_rlaxs_numbers(lambda_, advantages):
    """The inputs of google-deepmind/rlax's multistep_test.py."""
    rewards = array([0, 0, 1, 0, -0.5])
    result = gae(
        rewards=rewards,
        discounts=np.full(5, 0.99, np.float32),
        valid=all_valid(rewards),
        values=array([1, 4, -3, -2, -1, -1]),
        lambda_=lambda_,
    )
    np.testing.assert_allclose(result, advantages, rtol=1e-5)


def test_gae_stops_at_truncation_termination_and_reset():
    result = gae(lambda_=0.95, **STREAM)
    expected = [4.931955, 5.3941, 3.42, 0, 7.157, 5.4, 0, 6.34]
    np.testing.assert_allclose(result, expected, rtol=1e-6)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("lambda_", [0.0, 0.95, 1.0])
def test_gae_equals_its_definition_on_random_streams(seed, lambda_):
    stream, _ = random_stream(seed)
    expected = gae_by_definition(**stream, lambda_=lambda_)
    np.testing.assert_allclose(gae(lambda_=lambda_, **stream), expected, rtol=1e-4, atol=1e-5)
