"""Combine the curves of several runs: mean and range, where every run has data."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from sebulba.tools.report.runs import Run


@dataclasses.dataclass(frozen=True, kw_only=True)
class Band:
    """Mean and range over curves, at every `x` at which one of them has a point."""

    x: np.ndarray  # [N]
    mean: np.ndarray  # [N]
    low: np.ndarray  # [N]
    high: np.ndarray  # [N]


def curve(run: Run, x: str, y: str) -> tuple[np.ndarray, np.ndarray]:
    """Return two columns of a run's metrics, `[N]` each, without the rows that lack either."""
    xs, ys = np.array(run.column(x)), np.array(run.column(y))
    measured = np.isfinite(xs) & np.isfinite(ys)
    return xs[measured], ys[measured]


def band(curves: Sequence[tuple[np.ndarray, np.ndarray]]) -> Band | None:
    """Return mean, minimum and maximum of curves, interpolated linearly between their points.

    They cover only the `x` that every curve covers; the mean would jump where a curve ends.

    Args:
        curves: `x` and `y` of each curve, `[N_i]`; `x` ascending.

    Returns:
        None if less than two curves have points, or if they have no `x` in common.
    """
    curves = [(xs, ys) for xs, ys in curves if len(xs)]
    if len(curves) < 2:
        return None
    first, last = max(xs[0] for xs, _ in curves), min(xs[-1] for xs, _ in curves)
    points = np.unique(np.concatenate([xs for xs, _ in curves]))
    points = points[(points >= first) & (points <= last)]
    if not len(points):
        return None
    values = np.stack([np.interp(points, xs, ys) for xs, ys in curves])  # [curves, N]
    return Band(x=points, mean=values.mean(0), low=values.min(0), high=values.max(0))
