"""The curves of runs: read run directories, group runs, combine their seeds. Imports no jax.

A run may have ended, be running or have been killed.
"""

import collections
import dataclasses
import itertools
import json
import math
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from sebulba.config.file import read_config_file
from sebulba.config.yaml_dialect import inline
from sebulba.errors import ConfigError, did_you_mean
from sebulba.evaluation.statistics import MIN_VALUES, bootstrap_interval, interquartile_mean, mean
from sebulba.storage.names import CONFIG, METRICS, RUN, SUMMARY

_POLICY_LAG = "policy_lag/"
_NO_SUMMARY = "running, or killed before it wrote a summary"
_IGNORED_KEYS = ("seed", "run_dir", "resume")
_POLICY_COLUMNS = ("episode", "evaluation/")  # columns that begin so describe the policy
_MAX_POINTS = 200  # of a line; each has a bootstrap of its own

Curve = tuple[np.ndarray, np.ndarray]
"""`x` and `y` of a run's points, `[N]` each; `x` does not descend."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """The contents of a run directory."""

    path: pathlib.Path
    config: dict[str, Any]  # keys are dotted: "actor.num_envs"
    rows: list[dict[str, Any]]  # metrics.jsonl; may be empty
    summary: dict[str, Any] | None  # summary.json; None: the run has not ended, or was killed
    process: dict[str, Any]  # run.json: versions, devices, command; may be empty

    @property
    def status(self) -> str:
        """The run's status, such as "done"."""
        return _NO_SUMMARY if self.summary is None else str(self.summary.get("status"))

    @property
    def is_solved(self) -> bool:
        """Whether the run ended because it reached `run.stop_at_return`."""
        goal = _number(self.config.get("run.stop_at_return"))
        final = _number((self.summary or {}).get("final_episode_return_mean"))
        return self.status == "done" and final >= goal

    def column(self, key: str) -> list[float]:
        """Return a number for each row; NaN: the row has none."""
        return [_number(row.get(key)) for row in self.rows]

    @property
    def remote_actors(self) -> list[int]:
        """The numbers of the remote actors whose numbers are in the rows."""
        parts = {tuple(key.split("/", 2)[:2]) for row in self.rows for key in row}
        return sorted(int(part[1]) for part in parts if part[0] == "remote_actor")

    @property
    def win_rates(self) -> list[str]:
        """The columns with the win rates against each opponent in the pool of earlier versions."""
        return sorted({key for row in self.rows for key in row if key.startswith("win_rate_")})

    def policy_lags(self) -> collections.Counter[int]:
        """Count the trajectories by their policy lag."""
        lags: collections.Counter[int] = collections.Counter()
        for row in self.rows:
            for key, count in row.items():
                if key.startswith(_POLICY_LAG):
                    lags[int(key.removeprefix(_POLICY_LAG))] += count
        return lags

    def time_shares(self) -> dict[str, dict[str, float]]:
        """Return shares of time by kind of thread and activity, between 0 and 1.

        The summary has them; without one, this returns the means of the rows' shares, weighted by
        wall time.
        """
        if self.summary is not None and self.summary.get("time_shares"):
            return self.summary["time_shares"]
        seconds: dict[str, dict[str, float]] = {}
        earlier = 0.0
        for row in self.rows:
            wall_time = _number(row.get("wall_time_s"))
            # A row of evaluation has no shares; the next row's cover its time.
            if math.isnan(wall_time) or not any(key.startswith("time/") for key in row):
                continue
            for key, share in row.items():
                if key.startswith("time/") and math.isfinite(_number(share)):
                    _, kind, activity = key.split("/", 2)
                    spent = seconds.setdefault(kind, {})
                    spent[activity] = spent.get(activity, 0.0) + share * (wall_time - earlier)
            earlier = wall_time
        return {
            kind: {key: each / total for key, each in spent.items()}
            for kind, spent in seconds.items()
            if (total := sum(spent.values())) > 0
        }


def read_runs(paths: Sequence[str | pathlib.Path]) -> list[Run]:
    """Read every run of the given directories: run directories, or directories of several.

    Raises:
        ConfigError: a directory does not exist or holds no run, or a file is missing or invalid.
    """
    directories = [each for path in paths for each in _run_directories(pathlib.Path(path))]
    return [read_run(each) for each in dict.fromkeys(directories)]


def read_run(path: pathlib.Path) -> Run:
    """Read a run directory: `config.yaml`, `metrics.jsonl`, and the optional JSON files.

    Raises:
        ConfigError: one of the first two is missing, or a file is invalid.
    """
    for name in (CONFIG, METRICS):
        if not (path / name).is_file():
            raise ConfigError(f"{path}: expected a run directory with a {name}, got none")
    rows = read_rows(path / METRICS)
    summary = read_json(path / SUMMARY)
    if summary is not None and rows:
        has_resumed = _number(rows[-1].get("env_steps")) > _number(summary.get("env_steps"))
        summary = None if has_resumed else summary  # It is from before the run was resumed.
    return Run(
        path=path,
        config={key: each.value for key, each in read_config_file(str(path / CONFIG)).items()},
        rows=rows,
        summary=summary,
        process=read_json(path / RUN) or {},
    )


def _run_directories(path: pathlib.Path) -> list[pathlib.Path]:
    if not path.is_dir():
        got = "a file" if path.exists() else "no such directory"
        raise ConfigError(f"{path}: expected a run directory, got {got}")
    if (path / CONFIG).exists() or (path / METRICS).exists():
        return [path]
    inside = [each for each in path.iterdir() if (each / CONFIG).is_file()]
    if not inside:
        raise ConfigError(f"{path}: expected a {CONFIG} here or in a subdirectory, got none")
    return sorted(inside, key=_natural_order)


def _natural_order(path: pathlib.Path) -> tuple[str, int, str]:
    """Return a sort key that puts seed-10 after seed-9."""
    digits = path.name[len(path.name.rstrip("0123456789")) :]
    return (path.name.removesuffix(digits) if digits else path.name, int(digits or 0), path.name)


def read_rows(path: pathlib.Path) -> list[dict[str, Any]]:
    """Return the objects of a JSON-lines file, without a last line that is still being written."""
    data = _read(path)
    lines = data[: data.rfind(b"\n") + 1].splitlines()
    return [_parse_object(f"{path}:{number}", line) for number, line in enumerate(lines, start=1)]


def read_json(path: pathlib.Path) -> dict[str, Any] | None:
    """Return the object of a JSON file; None: there is no such file."""
    return _parse_object(str(path), _read(path)) if path.is_file() else None


def _parse_object(where: str, data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:  # the latter: too deep
        raise ConfigError(f"{where}: expected a JSON object, got {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: expected a JSON object, got {str(value)[:40]}")
    return value


def _read(path: pathlib.Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    return float(value)


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
