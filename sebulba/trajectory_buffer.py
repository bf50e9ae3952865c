"""The rows of an act cycle while they are written: `T + 1` of the environment, `T` of the agent."""

import jax
import jax.numpy as jnp

from sebulba.episodes import EpisodeStatistics
from sebulba.pytree import pytree_dataclass
from sebulba.types import PyTree, Trajectory


@pytree_dataclass
class Buffer:
    """The rows written so far; donated from step to step."""

    trajectory: Trajectory
    episodes: EpisodeStatistics  # [T, B]


def write_row(rows: PyTree, row: PyTree, t: jax.Array | int) -> PyTree:
    """Returns `[R, B, ...]` rows with `row` `[B, ...]` as row `t`, written in place if donated.

    Raises:
        ValueError: the row has another shape, which XLA would write all the same.
    """

    def write(leaf: jax.Array, new: jax.Array) -> jax.Array:
        if leaf.shape[1:] != jnp.shape(new):
            raise ValueError(f"expected a row of shape {leaf.shape[1:]}, got {jnp.shape(new)}")
        return jax.lax.dynamic_update_index_in_dim(leaf, new, t, axis=0)

    return jax.tree.map(write, rows, row)


def fill_rows(rows: PyTree, row: PyTree, start: jax.Array) -> PyTree:
    """Returns `[R, B, ...]` rows with `row` `[B, ...]` in all from row `start` on."""

    def fill(leaf: jax.Array, new: jax.Array) -> jax.Array:
        is_filled = (jnp.arange(leaf.shape[0]) >= start).reshape(-1, *[1] * (leaf.ndim - 1))
        return jnp.where(is_filled, jnp.asarray(new)[None], leaf)

    return jax.tree.map(fill, rows, row)
