"""The rows of an act cycle while they are written: `T + 1` of the environment, `T` of the agent."""

import jax
import jax.numpy as jnp

from sebulba.pytree import pytree_dataclass
from sebulba.types import EnvStep, PyTree, Trajectory


@pytree_dataclass
class Buffer:
    """The rows written so far; donated from step to step."""

    trajectory: Trajectory
    num_rows: jax.Array  # [] int32


def append_row(buffer: Buffer, env_step: EnvStep, action: PyTree, extras: PyTree) -> Buffer:
    """Returns the buffer with one row more, written in place if donated."""
    trajectory = buffer.trajectory
    t = _once_computed(action, buffer.num_rows)
    return Buffer(
        trajectory=Trajectory(
            env_steps=write_row(trajectory.env_steps, env_step, t),
            action=write_row(trajectory.action, action, t),
            extras=write_row(trajectory.extras, extras, t),
        ),
        num_rows=t + 1,
    )


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


def _once_computed(tree: PyTree, t: jax.Array) -> jax.Array:
    """Returns `t`, as a value that XLA has only when it has computed the tree's first leaf.

    XLA's CPU runtime wakes other threads when more than a few operations may run at once. The
    writes of a row might all run before the action is known, and take less time than the waking.
    """
    first = jax.tree.leaves(tree)[0].ravel()[0]
    bits = jax.lax.bitcast_convert_type(first.astype(jnp.float32), jnp.int32)
    return t + ((bits << 1) & 1)  # Zero, which XLA does not see.
