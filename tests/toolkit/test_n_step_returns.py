"""n-step returns, plain and transformed, against published numbers and their definition."""

import jax
import numpy as np
import pytest

from sebulba.toolkit import value_rescaling
from tests.streams import runs_of_valid
from tests.toolkit.return_streams import DISCOUNT, all_valid, array, n_step_returns, random_stream

rescale, inverse_rescale = map(jax.jit, (value_rescaling.rescale, value_rescaling.inverse_rescale))


def n_step_by_definition(rewards, discounts, valid, bootstrap_values, n):
    rewards, discounts = np.asarray(rewards, np.float64), np.asarray(discounts, np.float64)
    returns = np.zeros_like(rewards)
    for b, start, stop in runs_of_valid(np.asarray(valid)):
        for s in range(start, stop):
            end = min(s + n, stop)
            for t in range(s, end):
                returns[s, b] += np.prod(discounts[s:t, b]) * rewards[t, b]
            returns[s, b] += np.prod(discounts[s:end, b]) * bootstrap_values[end - 1, b]
    return returns


@pytest.mark.parametrize(
    ("n", "rewards", "done", "returns"),
    [
        (1, [1, 2, 3], [0, 0, 0], [91, 182, 273]),
        (1, [1, 2, 3], [0, 1, 0], [91, 2, 273]),
        (2, [1, 2, 3], [0, 0, 0], [1 + 1.8 + 162, 2 + 2.7 + 243, 273]),
        (
            3,
            [1, 2, 3, 4, 5, 6, 7],
            [0, 0, 0, 1, 0, 0, 0],
            [223.93, 7.94, 6.6, 4, 526.37, 579.3, 637],
        ),
    ],
)
def test_n_step_returns_match_seed_rls_numbers(n, rewards, done, returns):
    """The inputs of google-research/seed_rl's agents/r2d2/learner_test.py, which has no resets."""
    result = n_step_returns(
        rewards=array(rewards),
        discounts=DISCOUNT * (1 - array(done)),
        valid=all_valid(rewards),
        bootstrap_values=100 * (1 + np.arange(len(rewards), dtype=np.float32)),
        n=n,
    )
    np.testing.assert_allclose(result, returns, rtol=1e-6)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 12, 100])
def test_n_step_returns_equal_their_definition_on_random_streams(n):
    stream, _ = random_stream(n)
    bootstrap_values = stream.pop("values")[1:]
    expected = n_step_by_definition(**stream, bootstrap_values=bootstrap_values, n=n)
    result = n_step_returns(**stream, bootstrap_values=bootstrap_values, n=n)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("n", "truncated", "targets"),
    [
        (1, False, [0.720805, 2.193225, 2.326625, 1.995987, 1.564918]),
        (3, False, [2.162688, 2.002966, 2.326625, 1.561646, 1.564918]),
        (5, False, [2.162688, 2.002966, 2.326625, 1.561646, 1.564918]),
        (3, True, None),
    ],
)
def test_transformed_double_q_targets_match_golden_numbers(n, truncated, targets):
    online = array([[1, 2], [0.5, -0.5], [3, 1], [0.2, 0.4], [1.5, 2.5], [0.7, 0.1]])
    target = array([[0.9, 2.2], [0.4, -0.3], [2.5, 1.5], [0.3, 0.6], [1.2, 2], [0.6, 0.2]])
    greedy = np.argmax(online, axis=-1)
    boots = inverse_rescale(np.take_along_axis(target, greedy[:, None], axis=-1)[:, 0])[1:]
    rewards = array([1, -2, 10, 0, 4])
    discounts = 0.997 * (1 - array([0, 0, not truncated, 0, 0]))
    valid = array([1, 1, 1, not truncated, 1], bool)
    steps = {"rewards": rewards, "discounts": discounts, "valid": valid}
    result = rescale(n_step_returns(**steps, bootstrap_values=boots, n=n))
    if not truncated:
        np.testing.assert_allclose(result, targets, rtol=1e-5)
        return
    final = 10 + 0.997 * boots[2]
    expected = rescale(np.stack([1 + 0.997 * (-2 + 0.997 * final), -2 + 0.997 * final, final]))
    np.testing.assert_allclose(result[:3], expected, rtol=1e-5)


def test_transformed_n_step_td_errors_match_rlaxs_numbers():
    """The inputs of google-deepmind/rlax's nonlinear_bellman_test.py (n = 2)."""
    q = array([[[1.1, 2.1], [-1.1, 1.1], [3.1, -3.1]], [[2.1, 3.1], [-1.1, 0.1], [-2.1, -1.1]]])
    target_q = array(
        [[[1.2, 2.2], [-1.2, 0.2], [2.2, -1.2]], [[4.2, 2.2], [1.2, 1.2], [-1.2, -2.2]]]
    )
    action = array([[0, 1, 0], [1, 0, 0]], np.int32)[..., None]
    taken = np.take_along_axis(q, action, axis=-1)[..., 0].T
    boots = np.take_along_axis(target_q, action, axis=-1)[..., 0].T
    steps = {
        "rewards": array([[-1.3, -1.3, 2.3], [1.3, 5.3, -3.3]]).T,
        "discounts": array([[0.0, 0.89, 0.85], [0.88, 1.0, 0.83]]).T,
        "valid": all_valid(taken),
    }
    plain = n_step_returns(**steps, bootstrap_values=boots, n=2) - taken
    np.testing.assert_allclose(
        plain.T, [[-2.4, 1.3112999, 1.0700002], [3.9199996, 2.104, -2.196]], rtol=1e-4
    )
    rescaled = (
        rescale(n_step_returns(**steps, bootstrap_values=inverse_rescale(boots), n=2)) - taken
    )
    expected = [[-1.6178751, 0.85600746, -0.75762916], [-0.87689304, 0.6246443, 0.3598088]]
    np.testing.assert_allclose(rescaled.T, expected, rtol=1e-4)
