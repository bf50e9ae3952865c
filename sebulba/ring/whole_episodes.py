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
from sebulba.ring.act_cycle import Act, Buffer, act_row
from sebulba.types import ActorState, EnvStep, Networks, PyTree


def hold_final_row(row: EnvStep, new: EnvStep, *, is_last: jax.Array | bool) -> EnvStep:
    """Return the row after `row`: `new`, or `row` with reward 0 where the episode has ended.

    Both are `[B]`, of NumPy or JAX arrays. The last row, `T - 1`, truncates running episodes.
    """
    chosen = where_row(row.done, repeated(row), new)
    return dataclasses.replace(chosen, truncated=chosen.truncated | (is_last & ~chosen.done))


def act_at_end(
    act: Act, networks: Networks, actor_state: ActorState, env_step: EnvStep, buffer: Buffer
) -> Buffer:
    """Act on the row at which the last episode ends, and repeat it, with reward 0, up to `T - 1`.

    Its extras are those of the agent there, as in any other final row, since they may hold a value
    to bootstrap from. Its action changes no environment, and the next trajectory begins with the
    actor state before it.

    Args:
        act: acts on a row.
        networks: of the agent.
        actor_state: before the row.
        env_step: the row, `[B]`, all done.
        buffer: holds 1 … `T - 1` rows.

    Returns:
        The buffer, which lacks only row `T`.
    """
    _, _, buffer = act_row(act, networks, actor_state, env_step, buffer)
    trajectory, t = buffer.trajectory, buffer.num_rows
    last = jax.tree.map(
        lambda rows: jax.lax.dynamic_index_in_dim(rows, t - 1, keepdims=False), trajectory
    )
    last = dataclasses.replace(last, env_steps=repeated(last.env_steps))
    num_rows = jnp.full_like(t, trajectory.env_steps.reward.shape[0] - 1)
    return Buffer(trajectory=_fill_rows(trajectory, last, t), num_rows=num_rows)


def _fill_rows(rows: PyTree, row: PyTree, start: jax.Array) -> PyTree:
    """Return `[R, B, ...]` rows with `row` `[B, ...]` in each row from `start` on."""

    def fill(leaf: jax.Array, new: jax.Array) -> jax.Array:
        is_filled = (jnp.arange(leaf.shape[0]) >= start).reshape(-1, *[1] * (leaf.ndim - 1))
        return jnp.where(is_filled, jnp.asarray(new)[None], leaf)

    return jax.tree.map(fill, rows, row)
