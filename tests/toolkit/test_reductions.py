"""Reductions over all learner devices: the number of devices never changes value or gradient."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sebulba.toolkit.reductions import (
    LEARNER_AXIS,
    masked_max,
    masked_mean,
    masked_moments,
    masked_sum,
    mean_share,
    sum_share,
)
from tests.compiled import jitted
from tests.toolkit.learner_mesh import on_devices

X = np.random.default_rng(0).normal(size=(5, 8)).astype(np.float32)
# Devices get two columns of four (or four of two): some have many valid entries, some have none.
MASK = np.arange(40).reshape(5, 8) % 8 < np.array([[8], [3], [3], [1], [1]])
REDUCTIONS = [masked_sum, masked_mean, masked_moments, masked_max]
SHARES = {mean_share: masked_mean, sum_share: masked_sum}


def test_reductions_equal_numpys():
    chosen = X[MASK]
    np.testing.assert_allclose(jitted(masked_sum)(X, MASK), chosen.sum(), rtol=1e-5)
    np.testing.assert_allclose(jitted(masked_mean)(X, MASK), chosen.mean(), rtol=1e-5)
    mean, deviation = jitted(masked_moments)(X, MASK)
    np.testing.assert_allclose(mean, chosen.mean(), rtol=1e-5)
    np.testing.assert_allclose(deviation, chosen.std(), rtol=1e-5)
    np.testing.assert_array_equal(jitted(masked_max)(X, MASK), chosen.max())


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("num_devices", [1, 2, 4])
def test_every_device_has_the_value_over_all_devices(reduction, num_devices):
    results = on_devices(reduction, num_devices, X, MASK)
    expected = jitted(reduction)(X, MASK)
    for result, wanted in zip(jax.tree.leaves(results), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(result, np.full(num_devices, wanted), rtol=1e-5)


def loss(weights, x, mask, reduction):
    """A loss that is not linear in what is reduced, as normalised advantages and ratios are not."""
    prediction = jnp.tanh(weights[0] * x) + weights[1]
    mean, deviation = masked_moments(prediction, mask)
    error = jnp.square(prediction - x) * (x - mean) / deviation
    return reduction(error, mask) + jnp.square(reduction(prediction, mask))


@pytest.mark.parametrize("reduction", [masked_sum, masked_mean])
@pytest.mark.parametrize("num_devices", [1, 2, 4])
def test_gradients_averaged_over_devices_are_those_of_one_device(reduction, num_devices):
    weights = np.array([0.7, -0.3], np.float32)
    gradient = jax.grad(functools.partial(loss, reduction=reduction))

    def averaged(x, mask):
        return jax.lax.pmean(gradient(weights, x, mask), LEARNER_AXIS)

    results = on_devices(averaged, num_devices, X, MASK)
    expected = jax.jit(gradient)(weights, X, MASK)
    np.testing.assert_allclose(results, np.tile(expected, (num_devices, 1)), rtol=1e-4)


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("num_devices", [1, 2, 4])
def test_values_and_gradients_of_shares_average_to_those_of_the_whole(share, num_devices):
    def linear_loss(weights, x, mask, reduction):
        mean, deviation = masked_moments(x, mask)
        prediction = jnp.tanh(weights[0] * (x - mean) / deviation) + weights[1]
        return reduction(jnp.square(prediction - x), mask) - 0.1 * reduction(prediction, mask)

    weights = np.array([0.7, -0.3], np.float32)
    of = functools.partial(jax.value_and_grad, argnums=0)

    def averaged(x, mask):
        result = of(functools.partial(linear_loss, reduction=share))(weights, x, mask)
        return jax.lax.pmean(result, LEARNER_AXIS)

    results = on_devices(averaged, num_devices, X, MASK)
    whole = of(functools.partial(linear_loss, reduction=SHARES[share]))
    expected = jax.jit(whole)(weights, X, MASK)
    for result, wanted in zip(results, expected, strict=True):
        for each in result:
            np.testing.assert_allclose(each, wanted, rtol=1e-4)


def test_a_nan_where_the_mask_is_false_reaches_nothing():
    x = np.where(MASK, X, np.float32(np.nan))
    for reduction in (*REDUCTIONS, *SHARES):
        results = zip(
            jax.tree.leaves(jitted(reduction)(x, MASK)),
            jax.tree.leaves(jitted(reduction)(X, MASK)),
            strict=True,
        )
        for result, expected in results:
            np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("num_devices", [1, 4])
def test_an_empty_mask_gives_zeros_and_no_nan(num_devices):
    nowhere = np.zeros_like(MASK)

    def reduce_all(x, mask):
        sums = [each(x, mask) for each in (masked_sum, masked_mean, masked_moments, *SHARES)]
        return sums, masked_max(x, mask)

    sums, greatest = on_devices(reduce_all, num_devices, X, nowhere)
    for result in jax.tree.leaves(sums):
        np.testing.assert_array_equal(result, np.zeros(num_devices))
    assert (np.asarray(greatest) == -np.inf).all()
    for reduction in (masked_mean, mean_share):
        gradient = jax.jit(jax.grad(reduction))(X, nowhere)
        np.testing.assert_array_equal(gradient, np.zeros_like(X))


def test_moments_and_maximum_have_no_gradient():
    for reduction in (masked_max, lambda x, mask: sum(masked_moments(x, mask))):
        gradient = jax.jit(jax.grad(reduction))(X, MASK)
        np.testing.assert_array_equal(gradient, np.zeros_like(X))


def test_a_mask_of_another_shape_is_refused():
    for reduction in (masked_sum, masked_mean, masked_moments, *SHARES):
        with pytest.raises(AssertionError, match=r"different shapes: \[\(5, 8\), \(5,\)\]"):
            reduction(X, MASK[:, 0])
