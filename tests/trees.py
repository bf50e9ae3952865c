"""Comparing pytrees in tests."""

import jax
import jax.numpy as jnp
import numpy as np


def assert_trees_equal(got, expected):
    """Asserts that two pytrees are bitwise equal, keys included."""
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(_data(x), _data(y)), got, expected)


def _data(leaf):
    is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if is_key else leaf)
