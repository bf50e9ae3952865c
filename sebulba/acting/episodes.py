"""Episode statistics, computed inside the jitted act cycle and across trajectories."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from sebulba.pytree import pytree_dataclass
from sebulba.types import Array, EnvStep, EpisodeRecord, PyTree


@pytree_dataclass
class EpisodeStatistics:
    """Each environment's episode up to a row; `[T, B]` over a trajectory."""

    episode_return: jax.Array  # [B] float32, of raw rewards
    episode_length: jax.Array  # [B] int32, env steps; reset steps do not count
    is_over: jax.Array  # [B] bool, the episode ended with this row (before it: length 0)
    # [B] float32 by the name of a reducer: its result, once the episode has ended
    reduced: dict[str, jax.Array] = dataclasses.field(default_factory=dict)
    reducer_states: dict[str, PyTree] = dataclasses.field(default_factory=dict)

    def as_row(self) -> "EpisodeStatistics":
        """Return the statistics without the states of reducers, for storage in a trajectory."""
        return dataclasses.replace(self, reducer_states={})


def init_statistics(num_envs: int) -> EpisodeStatistics:
    """Return the statistics before the first row."""
    return EpisodeStatistics(
        episode_return=jnp.zeros(num_envs, jnp.float32),
        episode_length=jnp.zeros(num_envs, jnp.int32),
        is_over=jnp.ones(num_envs, bool),
    )


def update_statistics(statistics: EpisodeStatistics, env_step: EnvStep) -> EpisodeStatistics:
    """Return the statistics up to the next row, `env_step` `[B]`."""
    # A row after the end that is no reset repeats the final row (`whole_episodes`): no env step.
    is_repeated = statistics.is_over & ~env_step.is_first
    episode_return = jnp.where(statistics.is_over, 0.0, statistics.episode_return)
    episode_length = jnp.where(statistics.is_over, 0, statistics.episode_length)
    return dataclasses.replace(
        statistics,
        episode_return=episode_return + env_step.reward,
        episode_length=episode_length + jnp.where(env_step.is_first | is_repeated, 0, 1),
        is_over=env_step.done if env_step.episode_over is None else env_step.episode_over,
    )


def finished_episodes(rows: EpisodeStatistics) -> tuple[EpisodeRecord, ...]:
    """Return the episodes that ended within a trajectory, `[T, B]`, in the order of their ends."""
    ended = np.asarray(rows.is_over) & (np.asarray(rows.episode_length) > 0)
    if not ended.any():
        return ()
    returns = np.asarray(rows.episode_return)[ended]
    lengths = np.asarray(rows.episode_length)[ended]
    reduced = {name: np.asarray(values)[ended] for name, values in rows.reduced.items()}
    return tuple(
        EpisodeRecord(
            episode_return=float(returns[i]),
            episode_length=int(lengths[i]),
            reduced={name: float(values[i]) for name, values in reduced.items()},
        )
        for i in range(len(returns))
    )


def where_env(condition: Array, if_true: PyTree, otherwise: PyTree) -> PyTree:
    """Return a pytree `[B, ...]` with the values of one of two, chosen per environment."""

    def choose(x: Array, y: Array) -> Array:
        xp = np if isinstance(y, np.ndarray) else jnp
        return xp.where(condition.reshape(-1, *[1] * (x.ndim - 1)), x, y)

    return jax.tree.map(choose, if_true, otherwise)


def end_episodes(
    statistics: EpisodeStatistics, env_step: EnvStep
) -> tuple[tuple[EpisodeRecord, ...], int]:
    """Return the last episodes of a stream that ends after a row.

    Args:
        statistics: `[B]`, up to the row before `env_step`.
        env_step: `[B]`, the last row.

    Returns:
        The episodes that ended with the last row, without results of reducers, which would need its
        action; and the number of interrupted episodes, which no statistics include.
    """
    statistics = dataclasses.replace(statistics.as_row(), reduced={})
    last = jax.tree.map(
        np.asarray, update_statistics(statistics, jax.tree.map(np.asarray, env_step))
    )
    num_interrupted = int(np.sum(~last.is_over & (last.episode_length > 0)))
    return finished_episodes(jax.tree.map(lambda leaf: leaf[None], last)), num_interrupted
