"""Running moments against NumPy's of everything at once, on any number of learner devices."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sebulba.devices.learner_devices import REPLICATED, LearnerDevices
from sebulba.devices.mapping import map_over_learner_devices
from sebulba.toolkit.normalization import init_moments, merge, moments_of

LENGTH, NUM_ENVS = 5, 8


def make_batches(offset=0.0):
    """Return three batches `[T, B, 2]` with masks `[T, B]`, the second all masked."""
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(3, LENGTH, NUM_ENVS, 2)) * [0.1, 30.0] + offset).astype(np.float32)
    mask = rng.random((3, LENGTH, NUM_ENVS)) < 0.6
    mask[1] = False
    mask[:, :, :2] = False  # all that the first of four devices has
    x[~mask] = np.nan
    return x, mask


def with_batch(moments, x, mask):
    return merge(moments, moments_of(x, mask))


@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_merged_batches_have_the_moments_of_all_entries(offset):
    x, mask = make_batches(offset)
    moments = init_moments((2,))
    for batch in zip(x, mask, strict=True):
        moments = with_batch(moments, *map(jnp.asarray, batch))
    seen = x[mask].astype(np.float64)
    assert moments.count == len(seen)
    np.testing.assert_allclose(moments.mean, seen.mean(axis=0), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(moments.variance, seen.var(axis=0), rtol=1e-3)


def test_moments_of_half_precision_are_those_of_single():
    x = np.random.default_rng(0).normal(20.0, 3.0, (64, 64, 2)).astype(np.float16)
    moments = moments_of(jnp.asarray(x), jnp.ones((64, 64), bool))
    np.testing.assert_allclose(moments.mean, x.mean(axis=(0, 1), dtype=np.float64), rtol=1e-5)
    np.testing.assert_allclose(moments.variance, x.var(axis=(0, 1), dtype=np.float64), rtol=1e-4)


@pytest.mark.parametrize("before", [0, 1])
def test_a_batch_with_nothing_in_it_changes_nothing_at_all(before):
    x, mask = map(jnp.asarray, make_batches())
    moments = init_moments((2,))
    for batch in range(before):
        moments = with_batch(moments, x[batch], mask[batch])
    chex.assert_trees_all_equal(with_batch(moments, x[1], mask[1]), moments)


@pytest.mark.parametrize("num_devices", [2, 4])
def test_the_number_of_learner_devices_never_changes_the_moments(num_devices):
    x, mask = map(jnp.asarray, make_batches())
    start = with_batch(init_moments((2,)), x[0], mask[0])
    expected = with_batch(start, x[2], mask[2])
    learners = LearnerDevices(jax.devices()[:num_devices])
    merged = map_over_learner_devices(
        lambda moments, x, mask: (with_batch(moments, x, mask),), learners, out_specs=(REPLICATED,)
    )
    (got,) = merged(
        learners.replicate(start), learners.split(x[2], axis=1), learners.split(mask[2], axis=1)
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), got, expected)


def test_moments_have_no_gradient():
    x, mask = map(jnp.asarray, make_batches())
    x = jnp.where(mask[..., None], x, 0.0)

    def total(x):
        return sum(
            jnp.sum(leaf) for leaf in jax.tree.leaves(with_batch(init_moments((2,)), x, mask[0]))
        )

    assert not jax.grad(total)(x[0]).any()
