"""The categorical distribution against NumPy and against counts of its own draws."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sebulba.distributions import (
    categorical_entropy,
    categorical_kl,
    categorical_log_prob,
    categorical_mode,
    categorical_sample,
)

PROBABILITIES = np.array([[0.7, 0.2, 0.1], [0.25, 0.5, 0.25]], np.float32)
LOGITS = jnp.log(PROBABILITIES) + jnp.array([[3.0], [-200.0]])


def test_categorical_log_prob_of_unnormalised_logits():
    action = jnp.array([2, 1], jnp.int32)
    np.testing.assert_allclose(categorical_log_prob(LOGITS, action), np.log([0.1, 0.5]), rtol=1e-4)


def test_categorical_log_prob_keeps_leading_axes():
    logits = jnp.zeros((5, 2, 3))
    log_probs = categorical_log_prob(logits, jnp.zeros((5, 2), jnp.int32))
    np.testing.assert_allclose(log_probs, np.full((5, 2), -np.log(3)), rtol=1e-6)


def test_categorical_entropy_and_kl_equal_their_sums():
    p, q = PROBABILITIES.astype(np.float64)
    np.testing.assert_allclose(
        categorical_entropy(LOGITS), [-(p * np.log(p)).sum(), -(q * np.log(q)).sum()], rtol=1e-4
    )
    np.testing.assert_allclose(
        categorical_kl(LOGITS[0], LOGITS[1]), (p * np.log(p / q)).sum(), rtol=1e-4
    )
    np.testing.assert_array_equal(categorical_kl(LOGITS, LOGITS), [0.0, 0.0])


def test_categorical_sample_has_the_probabilities_of_its_logits():
    num_draws = 20_000
    logits = jnp.broadcast_to(LOGITS, (num_draws, 2, 3))
    draws = categorical_sample(jax.random.key(0), logits)
    assert draws.shape == (num_draws, 2) and draws.dtype == jnp.int32
    counts = np.stack([np.bincount(column, minlength=3) for column in np.asarray(draws).T])
    expected = num_draws * PROBABILITIES
    chi_square = ((counts - expected) ** 2 / expected).sum(axis=1)
    assert (chi_square < 13.8).all(), chi_square  # 2 degrees of freedom, p = 0.001


def test_categorical_mode_is_the_likeliest_action():
    mode = categorical_mode(LOGITS)
    np.testing.assert_array_equal(mode, [0, 1])
    assert mode.dtype == jnp.int32


@pytest.mark.parametrize(
    "function",
    [
        categorical_entropy,
        lambda logits: categorical_kl(logits, jnp.zeros_like(logits)),
        lambda logits: categorical_kl(logits, 2.0 * logits),
        lambda logits: categorical_log_prob(logits, jnp.int32(1)),
    ],
)
def test_an_impossible_action_leaves_values_and_gradients_finite(function):
    value, gradient = jax.value_and_grad(function)(jnp.array([1.0, 2.0, -jnp.inf]))
    assert jnp.isfinite(value) and jnp.isfinite(gradient).all()


def test_an_impossible_action_is_never_drawn_and_adds_no_entropy():
    logits = jnp.array([0.0, -jnp.inf, 0.0])
    np.testing.assert_allclose(categorical_entropy(logits), np.log(2), rtol=1e-6)
    draws = categorical_sample(jax.random.key(1), jnp.broadcast_to(logits, (1000, 3)))
    assert set(np.unique(draws)) == {0, 2}
