"""Sums over many numbers that are fast on a CPU.

With jaxlib 0.10, whose fast sums on a CPU can be wrong and are switched off (`sebulba.devices.
xla_flags`), they are matrix products with ones. On other platforms, and with later versions of
jaxlib, they are XLA's sums.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import jaxlib.version
from jax import lax

from sebulba.types import PyTree

_AS_PRODUCTS = jaxlib.version.__version_info__ < (0, 11)


def global_norm(tree: PyTree) -> jax.Array:
    """Return `[]`, the square root of the sum of squares of all leaves' entries."""

    # One sum for all, since small arrays each take a call of a kernel; off the CPU, one sum only.
    def by_rows(*leaves: jax.Array) -> jax.Array:
        return jnp.sum(jnp.concatenate([jnp.zeros(1, jnp.float32), *map(_sums_of_squares, leaves)]))

    def at_once(*leaves: jax.Array) -> jax.Array:
        flat = [leaf.astype(jnp.float32).ravel() for leaf in leaves]
        return jnp.sum(jnp.square(jnp.concatenate([jnp.zeros(1, jnp.float32), *flat])))

    leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    return jnp.sqrt(lax.platform_dependent(*leaves, cpu=by_rows, default=at_once))


def sum_of_rows(x: jax.Array) -> jax.Array:
    """Return `[F]`, the sum of all rows of `[..., F]`."""
    return _sum(
        x.reshape(-1, x.shape[-1]),
        product=lambda rows: _product(jnp.ones(rows.shape[0], rows.dtype), rows),
        plain=lambda rows: jnp.sum(rows, axis=0),
    )


def mean_of_row(x: jax.Array) -> jax.Array:
    """Return `[..., 1]`, the mean of each row of `[..., F]`."""
    size = x.shape[-1]
    return _sum(
        x,
        product=lambda rows: _product(rows, jnp.full((size, 1), 1 / size, rows.dtype)),
        plain=lambda rows: jnp.mean(rows, axis=-1, keepdims=True),
    )


def _sums_of_squares(x: jax.Array) -> jax.Array:
    """Return `[N]`, the sum of which is that of the squares."""
    squares = jnp.square(x.astype(jnp.float32))
    if x.ndim < 2:
        return squares.ravel()
    return _sum(
        squares.reshape(-1, x.shape[-1]),
        product=lambda rows: _product(rows, jnp.ones(x.shape[-1], jnp.float32)),
        plain=lambda rows: jnp.sum(rows, axis=-1),
    )


def _sum(
    x: jax.Array,
    *,
    product: Callable[[jax.Array], jax.Array],
    plain: Callable[[jax.Array], jax.Array],
) -> jax.Array:
    if not _AS_PRODUCTS:
        return plain(x)
    return lax.platform_dependent(x, cpu=product, default=plain)


def _product(x: jax.Array, y: jax.Array) -> jax.Array:
    """Return the matrix product, summed in float32 at least."""
    contracted = (((x.ndim - 1,), (0,)), ((), ()))
    dtype = jnp.float32 if x.dtype.itemsize < 4 else x.dtype
    return lax.dot_general(x, y, contracted, preferred_element_type=dtype).astype(x.dtype)
