"""Rollouts of whole episodes: a trajectory is one episode of each environment, from its reset on.

An environment whose episode is over waits for the others: its last row is repeated, unpaid, up to
row `T - 1`. Row `T` is the reset of all of them, and the next trajectory's row 0. So the stream
contract holds as it is: a row that waits is done, the transition out of it is no experience, and
`Trajectory.valid` is False for it.

An episode has at most `T - 1` env steps: one that is not over at row `T - 1` is truncated there.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from sebulba.acting.trajectory_buffer import Buffer, fill_rows, write_row
from sebulba.types import EnvStep, Trajectory


def wait_at_the_end(row: EnvStep, new: EnvStep, *, is_last: jax.Array | bool) -> EnvStep:
    """Returns the row after `row`, both `[B]`, NumPy's or JAX's.

    Args:
        row: of a whole episode.
        new: what the environment gave; after an episode's end, of an episode that is not wanted.
        is_last: whether this is row `T - 1`, where every episode has to be over.
    """
    xp = np if isinstance(new.reward, np.ndarray) else jnp
    waits = row.done

    def choose(old: jax.Array, new: jax.Array) -> jax.Array:
        return xp.where(waits.reshape(-1, *[1] * (new.ndim - 1)), old, new)

    chosen = jax.tree.map(choose, row, new)
    return dataclasses.replace(
        chosen,
        reward=xp.where(waits, xp.zeros_like(new.reward), new.reward),
        truncated=chosen.truncated | (is_last & ~chosen.done),
    )


def close_episodes(buffer: Buffer, row: EnvStep) -> Buffer:
    """Writes the row at which all episodes are over, and the rows in which all of them wait.

    Args:
        buffer: of 1 … `T - 1` rows.
        row: the next, `[B]`, all done.

    Returns:
        The buffer, whole but for row `T`.
    """
    trajectory, t = buffer.trajectory, buffer.num_rows
    waiting = dataclasses.replace(row, reward=jnp.zeros_like(trajectory.env_steps.reward[0]))
    env_steps = write_row(fill_rows(trajectory.env_steps, waiting, t), row, t)
    # What was chosen last stands for what is not chosen: it is as finite, and has weight 0.
    chosen = (trajectory.action, trajectory.extras)
    last = jax.tree.map(
        lambda rows: jax.lax.dynamic_index_in_dim(rows, t - 1, keepdims=False), chosen
    )
    action, extras = fill_rows(chosen, last, t)
    num_rows = jnp.full_like(t, trajectory.env_steps.reward.shape[0] - 1)
    trajectory = Trajectory(env_steps=env_steps, action=action, extras=extras)
    return Buffer(trajectory=trajectory, num_rows=num_rows)
