"""Interquartile means over seeds, and bootstrap intervals (Agarwal et al. 2021, 2108.13264)."""

from collections.abc import Sequence

import numpy as np

_NUM_RESAMPLES = 10_000


def interquartile_mean(values: Sequence[float]) -> float:
    """Return the mean without the lowest and the highest quarter."""
    cut = len(values) // 4
    return float(np.mean(np.sort(values)[cut : len(values) - cut]))


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % percentile bootstrap interval of the interquartile mean."""
    rng = np.random.default_rng(0)
    drawn = np.sort(rng.choice(values, (_NUM_RESAMPLES, len(values))), axis=1)
    cut = len(values) // 4
    means = drawn[:, cut : len(values) - cut].mean(axis=1)
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)
