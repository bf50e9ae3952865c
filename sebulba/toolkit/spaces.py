"""Shapes of what an environment gives and takes, and zeros of those shapes."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from sebulba.types import PyTree


def action_shape(space: gymnasium.Space) -> jax.ShapeDtypeStruct:
    """Return the shape and dtype of one environment's action: int32 or float32."""
    dtype = jnp.int32 if np.issubdtype(space.dtype, np.integer) else jnp.float32
    return jax.ShapeDtypeStruct(space.shape, dtype)


def zeros(shapes: PyTree, *leading: int) -> PyTree:
    """Return zeros `[*leading, ...]` for a pytree of `jax.ShapeDtypeStruct`s."""
    return jax.tree.map(lambda leaf: jnp.zeros((*leading, *leaf.shape), leaf.dtype), shapes)
