"""Statistics of episodes, kept inside the jitted act cycle and across trajectory borders."""

import jax
import jax.numpy as jnp
import numpy as np

from sebulba.pytree import pytree_dataclass
from sebulba.types import EnvStep, EpisodeRecord


@pytree_dataclass
class EpisodeStatistics:
    """Each environment's episode as of one row; `[T, B]` over a trajectory."""

    episode_return: jax.Array  # [B] float32, of raw rewards
    episode_length: jax.Array  # [B] int32, env steps; reset steps do not count
    is_over: jax.Array  # [B] bool, the episode ended with this row


def init_statistics(num_envs: int) -> EpisodeStatistics:
    """Returns the statistics before the first row."""
    return EpisodeStatistics(
        episode_return=jnp.zeros(num_envs, jnp.float32),
        episode_length=jnp.zeros(num_envs, jnp.int32),
        is_over=jnp.ones(num_envs, bool),
    )


def update_statistics(statistics: EpisodeStatistics, env_step: EnvStep) -> EpisodeStatistics:
    """Returns the statistics as of the next row, `env_step` `[B]`."""
    episode_return = jnp.where(statistics.is_over, 0.0, statistics.episode_return)
    episode_length = jnp.where(statistics.is_over, 0, statistics.episode_length)
    return EpisodeStatistics(
        episode_return=episode_return + env_step.reward,
        episode_length=episode_length + jnp.where(env_step.is_first, 0, 1),
        is_over=env_step.done if env_step.episode_over is None else env_step.episode_over,
    )


def finished_episodes(rows: EpisodeStatistics) -> tuple[EpisodeRecord, ...]:
    """Returns the episodes that ended within a trajectory, `[T, B]`, in the order of their ends."""
    is_over = np.asarray(rows.is_over)
    if not is_over.any():
        return ()
    returns = np.asarray(rows.episode_return)[is_over]
    lengths = np.asarray(rows.episode_length)[is_over]
    return tuple(
        EpisodeRecord(episode_return=float(episode_return), episode_length=int(episode_length))
        for episode_return, episode_length in zip(returns, lengths, strict=True)
    )
