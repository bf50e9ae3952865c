"""The buffer that an act cycle fills: `T + 1` rows of the environment, `T` of the agent."""

import dataclasses

import jax
import jax.numpy as jnp

from sebulba.devices.xla_cpu import map_in_order, token_after
from sebulba.pytree import pytree_dataclass
from sebulba.types import EnvStep, PyTree, Trajectory


@pytree_dataclass
class Buffer:
    """A partly written trajectory; donated from step to step, so that rows are written in place."""

    trajectory: Trajectory
    num_rows: jax.Array  # [] int32, written; also the token that orders the writes on a CPU


def append_env_step(buffer: Buffer, env_step: EnvStep) -> Buffer:
    """Return the buffer with the environment's part of the next row."""
    trajectory = buffer.trajectory
    env_steps, t = map_in_order(write_row, buffer.num_rows, trajectory.env_steps, env_step)
    return Buffer(trajectory=dataclasses.replace(trajectory, env_steps=env_steps), num_rows=t)


def append_choice(buffer: Buffer, action: PyTree, extras: PyTree) -> Buffer:
    """Return the buffer with the agent's part of the row that `append_env_step` began."""
    trajectory = buffer.trajectory
    t = token_after(jax.tree.leaves(action)[0], buffer.num_rows)
    rows = (trajectory.action, trajectory.extras)
    (actions, every_extras), t = map_in_order(write_row, t, rows, (action, extras))
    trajectory = dataclasses.replace(trajectory, action=actions, extras=every_extras)
    return Buffer(trajectory=trajectory, num_rows=t + 1)


def write_row(rows: PyTree, row: PyTree, t: jax.Array | int) -> PyTree:
    """Return `[R, B, ...]` rows with `row` `[B, ...]` as row `t`, written in place if donated.

    Raises:
        ValueError: the row has another shape, which `dynamic_update_index_in_dim` would accept.
    """

    def write(leaf: jax.Array, new: jax.Array) -> jax.Array:
        if leaf.shape[1:] != jnp.shape(new):
            raise ValueError(f"expected a row of shape {leaf.shape[1:]}, got {jnp.shape(new)}")
        return jax.lax.dynamic_update_index_in_dim(leaf, new, t, axis=0)

    return jax.tree.map(write, rows, row)


def fill_rows(rows: PyTree, row: PyTree, start: jax.Array) -> PyTree:
    """Return `[R, B, ...]` rows with `row` `[B, ...]` in each row from `start` on."""

    def fill(leaf: jax.Array, new: jax.Array) -> jax.Array:
        is_filled = (jnp.arange(leaf.shape[0]) >= start).reshape(-1, *[1] * (leaf.ndim - 1))
        return jnp.where(is_filled, jnp.asarray(new)[None], leaf)

    return jax.tree.map(fill, rows, row)
