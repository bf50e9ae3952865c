"""The curves of runs: group runs, combine their seeds. Imports no jax."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from sebulba.config.yaml_dialect import inline
from sebulba.errors import ConfigError, did_you_mean
from sebulba.evaluation.statistics import MIN_VALUES, bootstrap_interval, interquartile_mean, mean
from sebulba.storage.names import METRICS
from sebulba.storage.run_files import Run

_IGNORED_KEYS = ("seed", "run_dir", "resume")
_POLICY_COLUMNS = ("episode", "evaluation/")  # columns that begin so describe the policy
_MAX_POINTS = 200  # of a line; each has a bootstrap of its own

Curve = tuple[np.ndarray, np.ndarray]
"""`x` and `y` of a run's points, `[N]` each; `x` does not descend."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Group:
    """The runs of one config, with one or more seeds."""

    algorithm: str  # the agent, and the settings that groups of one environment differ in
    environment: str  # suite and ID
    runs: tuple[Run, ...]


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Group runs whose configs differ only in seed and run directory, in order of appearance.

    Groups of different environments are the same algorithm if they have the same agent and if
    neither shares its environment with another group of that agent. Otherwise, the keys that such
    neighbours differ in are part of the algorithm's name, without their sections where the last
    part of the key says enough.
    """
    by_config: dict[str, list[Run]] = {}
    for run in runs:
        by_config.setdefault(repr(sorted(_experiment(run).items())), []).append(run)
    differing: dict[str, dict[str, None]] = {}  # by agent; a dict keeps the order of the keys
    for one, other in itertools.combinations([group[0] for group in by_config.values()], 2):
        if (_agent(one), _environment(one)) == (_agent(other), _environment(other)):
            left, right = _experiment(one), _experiment(other)
            keys = [key for key in left | right if left.get(key) != right.get(key)]
            differing.setdefault(_agent(one), {}).update(dict.fromkeys(keys))
    groups = []
    for first, *others in by_config.values():
        keys = list(differing.get(_agent(first), ()))
        fields = [key.rpartition(".")[2] for key in keys]
        names = [
            field if fields.count(field) == 1 else key
            for key, field in zip(keys, fields, strict=True)
        ]
        words = [_agent(first)]
        words += [
            f"{name}={inline(first.config.get(key))}" for key, name in zip(keys, names, strict=True)
        ]
        runs_of_group = (first, *others)
        groups.append(
            Group(algorithm=" ".join(words), environment=_environment(first), runs=runs_of_group)
        )
    return groups


def _agent(run: Run) -> str:
    return str(run.config.get("agent.name"))


def _environment(run: Run) -> str:
    return f"{run.config.get('env.suite')} {run.config.get('env.id')}"


def _experiment(run: Run) -> dict[str, Any]:
    """Return the keys to compare; nulls are left out, since older runs lack newer keys."""
    return {
        key: value
        for key, value in run.config.items()
        if key not in _IGNORED_KEYS and value is not None
    }


def check_columns(runs: Sequence[Run], columns: Sequence[str]) -> None:
    """Check that the metrics of a run have each column; runs without rows say nothing.

    Raises:
        ConfigError: no run has the column.
    """
    known = dict.fromkeys(key for run in runs for row in run.rows for key in row)
    for column in columns:
        if known and column not in known:
            hint = did_you_mean(column, known)
            raise ConfigError(f"expected a column of {METRICS}, got {column}{hint}")


def curve(run: Run, x: str, y: str) -> Curve:
    """Return two columns of a run's metrics without the rows that lack either.

    Raises:
        ConfigError: `x` descends, so that `y` is no function of it.
    """
    xs, ys = np.array(run.column(x)), np.array(run.column(y))
    measured = np.isfinite(xs) & np.isfinite(ys)
    xs, ys = xs[measured], ys[measured]
    if np.any(np.diff(xs) < 0):
        raise ConfigError(f"{run.path}: expected an x-axis whose values never fall, got {x}")
    return xs, ys


def extended_curves(
    runs: Sequence[Run], x: str, y: str, *, end: float | None = None
) -> list[Curve]:
    """Return the curves of runs that have points; a run that reached its goal holds its last value.

    Such a run keeps its policy, so what describes the policy stays as it is. Speed and losses end
    with the run.

    Args:
        runs: the runs.
        x: a column of their metrics.
        y: another one.
        end: the `x` until which a curve is extended; None: the end of the longest curve.
    """
    curves = [(run, *curve(run, x, y)) for run in runs]
    if end is None:
        end = max((xs[-1] for _, xs, _ in curves if len(xs)), default=0.0)
    holds = y.startswith(_POLICY_COLUMNS)
    return [
        (np.append(xs, end), np.append(ys, ys[-1])) if holds and run.is_solved else (xs, ys)
        for run, xs, ys in curves
        if len(xs)
    ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Band:
    """A line through the curves of several seeds, and its 95 % bootstrap interval."""

    x: np.ndarray  # [N]
    line: np.ndarray  # [N]
    interval: tuple[np.ndarray, np.ndarray] | None  # [N] each; None: too few seeds


def band(curves: Sequence[Curve], *, use_mean: bool = False) -> Band | None:
    """Return the interquartile mean of curves, interpolated linearly between their points.

    It covers only the `x` that every curve covers; the line would jump where a curve ends.

    Args:
        curves: those of several seeds; each has points.
        use_mean: take the mean instead.

    Returns:
        None if there are less than two curves, or if they have no `x` in common.
    """
    if len(curves) < 2:
        return None
    first, last = max(xs[0] for xs, _ in curves), min(xs[-1] for xs, _ in curves)
    points = np.unique(np.concatenate([xs for xs, _ in curves]))
    points = points[(points >= first) & (points <= last)]
    if not len(points):
        return None
    chosen = np.linspace(0, len(points) - 1, min(len(points), _MAX_POINTS)).round().astype(int)
    points = points[chosen]
    values = _interpolate(curves, points).T  # [N, seeds]
    statistic = mean if use_mean else interquartile_mean
    has_interval = len(curves) >= MIN_VALUES
    return Band(
        x=points,
        line=statistic(values),
        interval=bootstrap_interval(values, seed=0, statistic=statistic) if has_interval else None,
    )


def scores(groups: Sequence[Group], *, x: str, y: str) -> dict[str, Any]:
    """Return final values and curves in the shapes that the library `rliable` takes.

    Returns:
        A dict to write as JSON. `tasks`: the environments. `x`: `[N]` values that all runs cover,
        where those that reached their goal cover all that follows. `scores`: the last values,
        `[runs, tasks]` by algorithm. `curves`: the values at `x`, `[runs, tasks, N]` by algorithm.

    Raises:
        ConfigError: an algorithm does not have as many runs with values in every environment, or
            the runs have no `x` in common.
    """
    algorithms = list(dict.fromkeys(group.algorithm for group in groups))
    tasks = list(dict.fromkeys(group.environment for group in groups))
    measured = [curve(run, x, y)[0] for group in groups for run in group.runs]
    end = max((xs[-1] for xs in measured if len(xs)), default=0.0)
    cells = {
        (group.algorithm, group.environment): extended_curves(group.runs, x, y, end=end)
        for group in groups
    }
    for algorithm in algorithms:
        counts = [len(cells.get((algorithm, task), ())) for task in tasks]
        if min(counts) == 0 or min(counts) != max(counts):
            got = ", ".join(f"{n} in {task}" for n, task in zip(counts, tasks, strict=True))
            raise ConfigError(
                f"{algorithm}: expected as many runs with {y} in each environment, got {got}"
            )
    first = max(xs[0] for cell in cells.values() for xs, _ in cell)
    last = min(xs[-1] for cell in cells.values() for xs, _ in cell)
    if first > last:
        raise ConfigError(f"expected runs that have {x} in common; set another x-axis")
    points = np.linspace(first, last, _MAX_POINTS)
    finals, curves = {}, {}
    for algorithm in algorithms:
        row = [cells[algorithm, task] for task in tasks]
        finals[algorithm] = np.stack([[ys[-1] for _, ys in cell] for cell in row], axis=1)
        curves[algorithm] = np.stack([_interpolate(cell, points) for cell in row], axis=1)
    return {
        "tasks": tasks,
        "x": points.tolist(),
        "scores": {algorithm: values.tolist() for algorithm, values in finals.items()},
        "curves": {algorithm: values.tolist() for algorithm, values in curves.items()},
    }


def _interpolate(curves: Sequence[Curve], points: np.ndarray) -> np.ndarray:
    """Return the values of curves at points, `[curves, N]`."""
    return np.stack([np.interp(points, xs, ys) for xs, ys in curves])
