"""Rows that repeat the final row of an episode, until the environment is reset.

Of players that act together, one may be out before the others. Its final row is then repeated with
reward 0 and `is_first` False. A repeated row is done, so the transitions out of it are not `valid`,
and it counts as no env step.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from sebulba.types import Array, EnvStep, PyTree


def repeated(row: EnvStep) -> EnvStep:
    """Return the row that repeats `row` `[B]`, of NumPy or JAX arrays, after the episode's end."""
    return dataclasses.replace(row, reward=np.zeros(row.reward.shape, row.reward.dtype))


def where_row(condition: Array, if_true: PyTree, otherwise: PyTree) -> PyTree:
    """Return a pytree `[B, ...]` with the values of one of two, chosen per row of the batch."""

    def choose(x: Array, y: Array) -> Array:
        xp = np if isinstance(y, np.ndarray) else jnp
        return xp.where(condition.reshape(-1, *[1] * (x.ndim - 1)), x, y)

    return jax.tree.map(choose, if_true, otherwise)
