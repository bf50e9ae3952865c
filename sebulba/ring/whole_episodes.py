"""Rollouts of complete episodes: a trajectory is one episode of each environment.

An environment whose episode has ended repeats its final row, with reward 0, up to row `T - 1`. Row
`T` is the reset of all environments, and row 0 of the next trajectory. The stream contract holds
without a special case: a repeated row is done, so the transition out of it is not valid.

An episode that has not ended at row `T - 1` is truncated there.
"""

import dataclasses

import jax
import jax.numpy as jnp

from sebulba.envs.final_rows import repeated, where_row
from sebulba.ring.act_cycle import Buffer, write_row
from sebulba.types import EnvStep, PyTree, Trajectory


def hold_final_row(row: EnvStep, new: EnvStep, *, is_last: jax.Array | bool) -> EnvStep:
    """Return the row after `row`: `new`, or `row` with reward 0 where the episode has ended.

    Both are `[B]`, of NumPy or JAX arrays. The last row, `T - 1`, truncates running episodes.
    """
    chosen = where_row(row.done, repeated(row), new)
    return dataclasses.replace(chosen, truncated=chosen.truncated | (is_last & ~chosen.done))


def fill_after_end(buffer: Buffer, row: EnvStep) -> Buffer:
    """Write the row at which the last episode ends, and repeat it with reward 0 up to row `T - 1`.

    Args:
        buffer: holds 1 … `T - 1` rows.
        row: the next row, `[B]`, all done.

    Returns:
        The buffer, which lacks only row `T`.
    """
    trajectory, t = buffer.trajectory, buffer.num_rows
    env_steps = write_row(_fill_rows(trajectory.env_steps, repeated(row), t), row, t)
    # Repeat the last action and extras too: finite numbers, since 0 · NaN in a loss is NaN.
    chosen = (trajectory.action, trajectory.extras)
    last = jax.tree.map(
        lambda rows: jax.lax.dynamic_index_in_dim(rows, t - 1, keepdims=False), chosen
    )
    action, extras = _fill_rows(chosen, last, t)
    num_rows = jnp.full_like(t, trajectory.env_steps.reward.shape[0] - 1)
    trajectory = Trajectory(env_steps=env_steps, action=action, extras=extras)
    return Buffer(trajectory=trajectory, num_rows=num_rows)


def _fill_rows(rows: PyTree, row: PyTree, start: jax.Array) -> PyTree:
    """Return `[R, B, ...]` rows with `row` `[B, ...]` in each row from `start` on."""

    def fill(leaf: jax.Array, new: jax.Array) -> jax.Array:
        is_filled = (jnp.arange(leaf.shape[0]) >= start).reshape(-1, *[1] * (leaf.ndim - 1))
        return jnp.where(is_filled, jnp.asarray(new)[None], leaf)

    return jax.tree.map(fill, rows, row)
