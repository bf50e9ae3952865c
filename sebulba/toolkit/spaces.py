"""Zeros of the shapes of what an environment gives and takes."""

import jax
import jax.numpy as jnp

from sebulba.types import PyTree


def zeros(shapes: PyTree, *leading: int) -> PyTree:
    """Return zeros `[*leading, ...]` for a pytree of `jax.ShapeDtypeStruct`s."""
    return jax.tree.map(lambda leaf: jnp.zeros((*leading, *leaf.shape), leaf.dtype), shapes)
