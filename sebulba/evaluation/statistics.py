"""Statistics of evaluation episodes, and of seeds. Imports no jax."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

MIN_VALUES = 3
"""Seeds that an interval needs: the interval of two values would be the values themselves."""
_RESAMPLES = 2_000
_CONFIDENCE = 0.95

Statistics = dict[str, float | int | None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpisodeRecord:
    """A finished episode."""

    episode_return: float  # of raw rewards
    episode_length: int  # env steps, without reset steps
    returns_of_players: tuple[float, ...] = ()  # of several players, whose mean is the return


def summarize(records: Sequence[EpisodeRecord], *, seed: int) -> Statistics:
    """Return the statistics of finished episodes; None where there are too few.

    The interval covers the randomness of episodes only: it tells how precisely this policy's return
    is known, not how much training seeds differ.

    Args:
        records: the episodes.
        seed: seed of the bootstrap.
    """
    returns = np.array([record.episode_return for record in records], np.float64)
    lengths = np.array([record.episode_length for record in records], np.float64)
    of_players = np.array([record.returns_of_players for record in records], np.float64)
    if not len(returns):
        keys = ("mean", "std", "min", "max", "iqm", "iqm_low", "iqm_high")
        return {"episodes": 0, **{f"return_{key}": None for key in keys}, "length_mean": None}
    low, high = bootstrap_interval(returns, seed=seed)
    return {
        "episodes": len(returns),
        "return_mean": float(np.mean(returns)),
        "return_std": float(np.std(returns, ddof=1)) if len(returns) > 1 else None,
        "return_min": float(np.min(returns)),
        "return_max": float(np.max(returns)),
        "return_iqm": float(interquartile_mean(returns)),
        "return_iqm_low": low,
        "return_iqm_high": high,
        "length_mean": float(np.mean(lengths)),
        **{
            f"return_mean_of_player_{player}": float(np.mean(returns))
            for player, returns in enumerate(of_players.T)
        },
    }


def interquartile_mean(values: np.ndarray) -> np.ndarray:
    """Return the mean without the lowest and highest quarter of the values.

    Discards `⌊n / 4⌋` of `n` values at each end: Agarwal et al. 2021, "Deep Reinforcement Learning
    at the Edge of the Statistical Precipice" (arXiv 2108.13264, section 4.3).

    Args:
        values: `[..., n]`.
    """
    num_dropped = values.shape[-1] // 4
    kept = slice(num_dropped, values.shape[-1] - num_dropped)
    return np.sort(values, axis=-1)[..., kept].mean(axis=-1)


def interquartile_mean_of_seeds(
    values: Sequence[float],
) -> tuple[float | None, float | None, float | None]:
    """Return the interquartile mean over seeds, and the bounds of its 95 % bootstrap interval.

    None without any value; the bounds are None below `MIN_VALUES`.
    """
    array = np.array(values, np.float64)
    if not len(array):
        return None, None, None
    if len(array) < MIN_VALUES:
        return float(interquartile_mean(array)), None, None
    low, high = bootstrap_interval(array, seed=0)
    return float(interquartile_mean(array)), float(low), float(high)


def mean(values: np.ndarray) -> np.ndarray:
    """Return the mean over the last axis of `[..., n]` values."""
    return values.mean(axis=-1)


def bootstrap_interval(
    values: np.ndarray,
    *,
    seed: int,
    statistic: Callable[[np.ndarray], np.ndarray] = interquartile_mean,
) -> tuple[Any, Any]:
    """Return the 95 % percentile bootstrap interval of a statistic over the last axis.

    The method of Agarwal et al. 2021 (arXiv 2108.13264, section 4.1).

    Args:
        values: `[..., n]`; all share the same resamples.
        seed: the seed of the resamples.
        statistic: maps `[..., n]` values to `[...]`.

    Returns:
        Lower and upper bounds, `[...]`.
    """
    num_values = values.shape[-1]
    chosen = np.random.default_rng(seed).integers(num_values, size=(_RESAMPLES, num_values))
    tail = 50 * (1 - _CONFIDENCE)
    low, high = np.percentile(statistic(values[..., chosen]), [tail, 100 - tail], axis=-1)
    return low, high
