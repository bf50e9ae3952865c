"""The rows of an act cycle while they are written: `T + 1` of the environment, `T` of the agent."""

import dataclasses

import jax
import jax.numpy as jnp

from sebulba.pytree import pytree_dataclass
from sebulba.types import EnvStep, PyTree, Trajectory


@pytree_dataclass
class Buffer:
    """The rows written so far; donated from step to step."""

    trajectory: Trajectory
    num_rows: jax.Array  # [] int32


def append_env_step(buffer: Buffer, env_step: EnvStep) -> Buffer:
    """Returns the buffer with the environment's part of one row more, in place if donated."""
    trajectory = buffer.trajectory
    env_steps, t = _write_in_turn(trajectory.env_steps, env_step, buffer.num_rows)
    return Buffer(trajectory=dataclasses.replace(trajectory, env_steps=env_steps), num_rows=t)


def append_choice(buffer: Buffer, action: PyTree, extras: PyTree) -> Buffer:
    """Returns the buffer with the agent's part of that row, in place if donated."""
    trajectory = buffer.trajectory
    t = _once_computed(jax.tree.leaves(action)[0], buffer.num_rows)
    rows = (trajectory.action, trajectory.extras)
    (actions, every_extras), t = _write_in_turn(rows, (action, extras), t)
    trajectory = dataclasses.replace(trajectory, action=actions, extras=every_extras)
    return Buffer(trajectory=trajectory, num_rows=t + 1)


def once_written(buffer: Buffer, tree: PyTree) -> PyTree:
    """Returns the tree, as values that XLA has on a CPU only when it has written the buffer.

    XLA's CPU runtime wakes other threads when more than a few operations may run at once. What acts
    from a row begins with many, and what writes it are many: all of them take less time than the
    waking, so they are made to wait for each other.
    """

    def wait(tree: PyTree, num_rows: jax.Array) -> PyTree:
        is_written = num_rows >= 0  # Always, which XLA does not see.
        return jax.tree.map(lambda leaf: jnp.where(is_written, leaf, _zeros_like(leaf)), tree)

    return jax.lax.platform_dependent(
        tree, buffer.num_rows, cpu=wait, default=lambda tree, num_rows: tree
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


def _write_in_turn(rows: PyTree, row: PyTree, t: jax.Array) -> tuple[PyTree, jax.Array]:
    """Writes row `t` leaf by leaf; returns `t` as known after the last: see `once_written`."""

    def write(leaf: jax.Array, new: jax.Array) -> jax.Array:
        nonlocal t
        written = write_row(leaf, new, t)
        t = _once_computed(written, t)
        return written

    return jax.tree.map(write, rows, row), t


def _once_computed(array: jax.Array, t: jax.Array) -> jax.Array:
    def wait(array: jax.Array, t: jax.Array) -> jax.Array:
        first = jax.lax.index_in_dim(array.reshape(-1), 0, keepdims=False)
        bits = jax.lax.bitcast_convert_type(first.astype(jnp.float32), jnp.int32)
        return t + ((bits << 1) & 1)  # Zero, which XLA does not see.

    if _is_key(array) or array.size == 0:
        return t
    return jax.lax.platform_dependent(array, t, cpu=wait, default=lambda array, t: t)


def _zeros_like(leaf: jax.Array) -> jax.Array:
    if not _is_key(leaf):
        return jnp.zeros_like(leaf)
    data = jnp.zeros_like(jax.random.key_data(leaf))
    return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))


def _is_key(array: jax.Array) -> bool:
    return jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key)
