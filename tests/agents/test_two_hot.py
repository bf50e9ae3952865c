"""Scalars as categorical distributions: golden numbers, round trips, gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sebulba.toolkit.value_rescaling import rescale
from sebulba_agents.two_hot import TwoHot


def logits_of(weights):
    return np.log(np.maximum(weights, np.float32(1e-30)))


def test_weights_golden():
    # With ε = 0, h(3) = 1 and h(8) = 2, so that h of the bins is −2, −1, 0, 1, 2.
    coder = TwoHot(limit=8.0, num_bins=5, epsilon=0.0)
    np.testing.assert_allclose(coder.support, [-2, -1, 0, 1, 2], atol=1e-6)
    weights = jax.jit(coder.encode)(np.array([0.0, 3.0, -8.0, 1.25, 100.0], np.float32))
    expected = [
        [0, 0, 1, 0, 0],
        [0, 0, 0, 1, 0],
        [1, 0, 0, 0, 0],
        [0, 0, 0.5, 0.5, 0],
        [0, 0, 0, 0, 1],
    ]
    np.testing.assert_allclose(weights, expected, atol=1e-6)


@pytest.mark.parametrize(("limit", "num_bins"), [(1.0, 3), (1e5, 601)])
def test_round_trip_keeps_every_number_within_the_limit(limit, num_bins):
    coder = TwoHot(limit=limit, num_bins=num_bins)
    size = np.concatenate([np.zeros(1), limit * np.logspace(-4, 0, 2_000)])
    x = np.concatenate([-size, size]).astype(np.float32)
    weights = np.asarray(jax.jit(coder.encode)(x))
    np.testing.assert_allclose(np.sum(weights, axis=-1), 1.0, rtol=1e-4)
    assert np.max(np.sum(weights > 0.0, axis=-1)) <= 2
    # An error of float32 in h(x) of up to h(limit) is one of its square in x.
    tolerance = 2e-5 * float(rescale(jnp.float32(limit))) ** 2
    decoded = jax.jit(coder.decode)(logits_of(weights))
    np.testing.assert_allclose(decoded, x, rtol=1e-3, atol=tolerance)


def test_numbers_beyond_the_limit_are_clipped():
    coder = TwoHot(limit=10.0, num_bins=21)
    weights = jax.jit(coder.encode)(np.array([-1e6, 11.0], np.float32))
    decoded = jax.jit(coder.decode)(logits_of(weights))
    np.testing.assert_allclose(decoded, [-10.0, 10.0], rtol=1e-4)


def test_equal_logits_are_zero():
    decode = jax.jit(TwoHot(limit=300.0, num_bins=51).decode)
    assert abs(float(decode(np.zeros(51, np.float32)))) < 1e-5


def test_cross_entropy_has_its_minimum_at_the_target_and_no_gradient_to_it():
    coder = TwoHot(limit=8.0, num_bins=5, epsilon=0.0)
    x = np.array([1.25, -2.0], np.float32)
    at_target = logits_of(jax.jit(coder.encode)(x))
    gradient = jax.grad(lambda *args: jnp.sum(coder.cross_entropy(*args)), (0, 1))
    grad_logits, grad_x = jax.jit(gradient)(at_target, x)
    np.testing.assert_allclose(grad_logits, 0.0, atol=1e-6)
    np.testing.assert_array_equal(grad_x, 0.0)
    golden = jax.jit(coder.cross_entropy)(np.zeros((2, 5), np.float32), x)
    np.testing.assert_allclose(golden, np.log(5.0), rtol=1e-6)


@pytest.mark.parametrize(("limit", "num_bins"), [(0.0, 5), (1.0, 4), (1.0, 1)])
def test_sizes_without_a_bin_at_zero_are_refused(limit, num_bins):
    with pytest.raises(ValueError, match="expected"):
        TwoHot(limit=limit, num_bins=num_bins)
