"""Random permutations are permutations, and all as likely."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sebulba.toolkit.shuffling import shifted_order, shuffle


@pytest.mark.parametrize("size", [0, 1, 3, 2049, 2**16 + 1, 2**17, 3 * 2**17])
def test_every_value_comes_once_in_an_order_of_the_key(size):
    values = 3 * np.arange(size, dtype=np.int32) + 7
    jitted = jax.jit(shuffle)
    first, second = (np.asarray(jitted(jax.random.key(seed), values)) for seed in (0, 1))
    np.testing.assert_array_equal(np.sort(first), values)
    np.testing.assert_array_equal(first, shuffle(jax.random.key(0), values))
    if size > 64:
        assert np.mean(first == values) < 0.1 and np.mean(first == second) < 0.1


def test_all_orders_are_as_likely():
    num_keys, orders = 24_000, list(itertools.permutations(range(4)))
    keys = jax.random.split(jax.random.key(2), num_keys)
    shuffle_all = jax.jit(jax.vmap(shuffle, in_axes=(0, None)))
    drawn = np.asarray(shuffle_all(keys, jnp.arange(4, dtype=jnp.int32)))
    counts = np.array([np.sum(np.all(drawn == np.array(order), axis=1)) for order in orders])
    expected = num_keys / len(orders)
    # Chi-square with 23 degrees of freedom: exceeds 50 once in a thousand.
    assert np.sum((counts - expected) ** 2 / expected) < 50.0


def test_entries_are_spread_over_minibatches_by_chance():
    size, num_keys, num_entries = 4096, 2_000, 64
    orders = jax.jit(jax.vmap(lambda key: shifted_order(key, size)))(
        jax.random.split(jax.random.key(4), num_keys)
    )
    first_quarter = np.asarray(orders)[:, : size // 4]
    # Hypergeometric: mean and variance, with five standard errors.
    variance = num_entries * 0.25 * 0.75 * (size - num_entries) / (size - 1)
    for stride in (1, 64, 65):  # a row, a column and a diagonal of the grid
        entries = stride * np.arange(num_entries) % size
        counts = np.isin(first_quarter, entries).sum(axis=1)
        assert abs(counts.mean() - 0.25 * num_entries) < 5.0 * np.sqrt(variance / num_keys)
        assert abs(counts.var() / variance - 1.0) < 5.0 * np.sqrt(2.0 / num_keys)


def test_long_orders_mix_all_places():
    values = np.arange(2**17, dtype=np.int32)
    order = np.asarray(jax.jit(shuffle)(jax.random.key(3), values), np.int64)
    assert abs(np.mean(order[1:] > order[:-1]) - 0.5) < 0.01
    for distance in (1, 256, 512):
        assert abs(np.corrcoef(order[distance:], order[:-distance])[0, 1]) < 0.02
        assert np.sum(order[distance:] - order[:-distance] == 1) < 10
    assert abs(np.corrcoef(order, values)[0, 1]) < 0.02


def test_neighbours_in_a_long_order_are_independent():
    # With 16 random bits, about half of the entries share theirs with another one in a round.
    values = np.arange(2**16, dtype=np.int32)
    order = np.asarray(jax.jit(shuffle)(jax.random.key(3), values), np.int64)
    assert abs(np.mean(order[1:] > order[:-1]) - 0.5) < 0.01
    assert abs(np.corrcoef(order[1:], order[:-1])[0, 1]) < 0.02
    assert abs(np.corrcoef(order, values)[0, 1]) < 0.02
