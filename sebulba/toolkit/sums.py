"""Sums over many numbers that are fast on a CPU.

XLA's own sums on a CPU add one number after the other; its matrix products use all lanes of a core,
so here sums are products with ones. On other platforms they are XLA's.
"""

import jax
import jax.numpy as jnp
from jax import lax

from sebulba.types import PyTree


def global_norm(tree: PyTree) -> jax.Array:
    """Return `[]`, the square root of the sum of squares of all leaves' entries."""
    # One sum for all, since small arrays each take a call of a kernel.
    parts = [_sums_of_squares(jnp.asarray(leaf)) for leaf in jax.tree.leaves(tree)]
    return jnp.sqrt(jnp.sum(jnp.concatenate([jnp.zeros(1), *parts])))


def _sums_of_squares(x: jax.Array) -> jax.Array:
    """Return `[N]`, the sum of which is that of the squares."""
    squares = jnp.square(x.astype(jnp.float32))
    if x.ndim < 2:
        return squares.ravel()
    return lax.platform_dependent(
        squares.reshape(-1, x.shape[-1]),
        cpu=lambda rows: _product(rows, jnp.ones(x.shape[-1], jnp.float32)),
        default=lambda rows: jnp.sum(rows, axis=-1),
    )


def sum_of_rows(x: jax.Array) -> jax.Array:
    """Return `[F]`, the sum of all rows of `[..., F]`."""
    return lax.platform_dependent(
        x.reshape(-1, x.shape[-1]),
        cpu=lambda rows: _product(jnp.ones(rows.shape[0], rows.dtype), rows),
        default=lambda rows: jnp.sum(rows, axis=0),
    )


def mean_of_row(x: jax.Array) -> jax.Array:
    """Return `[..., 1]`, the mean of each row of `[..., F]`."""
    size = x.shape[-1]
    return lax.platform_dependent(
        x,
        cpu=lambda rows: _product(rows, jnp.full((size, 1), 1 / size, rows.dtype)),
        default=lambda rows: jnp.mean(rows, axis=-1, keepdims=True),
    )


def _product(x: jax.Array, y: jax.Array) -> jax.Array:
    """Return the matrix product, summed in float32 at least."""
    contracted = (((x.ndim - 1,), (0,)), ((), ()))
    dtype = jnp.float32 if x.dtype.itemsize < 4 else x.dtype
    return lax.dot_general(x, y, contracted, preferred_element_type=dtype).astype(x.dtype)
