"""What a number of episodes says about a policy."""

from collections.abc import Sequence

import numpy as np

from sebulba.types import EpisodeRecord

_RESAMPLES = 2_000
_CONFIDENCE = 0.95

Statistics = dict[str, float | int | None]


def summarize(records: Sequence[EpisodeRecord], *, seed: int) -> Statistics:
    """Returns the statistics of finished episodes; None where there are too few.

    The interval is that of the episodes: it says how well the return of this policy is known, and
    nothing about how another training seed would do.

    Args:
        records: the episodes.
        seed: of the bootstrap's resampling.
    """
    returns = np.array([record.episode_return for record in records], np.float64)
    lengths = np.array([record.episode_length for record in records], np.float64)
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
    }


def interquartile_mean(values: np.ndarray) -> np.ndarray:
    """Returns the mean of the middle half: without the lowest and the highest quarter.

    Of `n` values `⌊n / 4⌋` are left out at each end, as by Agarwal et al. 2021, "Deep Reinforcement
    Learning at the Edge of the Statistical Precipice" (arXiv 2108.13264, section 4.3).

    Args:
        values: `[..., n]`.
    """
    cut = values.shape[-1] // 4
    return np.sort(values, axis=-1)[..., cut : values.shape[-1] - cut].mean(axis=-1)


def bootstrap_interval(values: np.ndarray, *, seed: int) -> tuple[float, float]:
    """Returns the percentile bootstrap's 95 % interval of the interquartile mean of `[n]` values.

    As by Agarwal et al. 2021 (arXiv 2108.13264, section 4.1), over episodes instead of runs.
    """
    rng = np.random.default_rng(seed)
    resampled = rng.choice(values, size=(_RESAMPLES, len(values)))
    tail = 50 * (1 - _CONFIDENCE)
    low, high = np.percentile(interquartile_mean(resampled), [tail, 100 - tail])
    return float(low), float(high)
