"""Read run directories: config, rows, summary and start of a run. Imports no jax.

A run may have ended, be running or have been killed.
"""

import collections
import dataclasses
import json
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from sebulba.config.file import read_config_file
from sebulba.errors import ConfigError
from sebulba.storage.names import CHANGES, CONFIG, METRICS, RUN, SUMMARY

_POLICY_LAG = "policy_lag/"
_MAX_NAMED = 5  # runs, in an error
_NO_SUMMARY = "running, or killed before it wrote a summary"


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


def describe_runs_in(path: pathlib.Path) -> str:
    """Return the sentence to append to an error about a directory that may hold several runs."""
    inside = sorted((each.parent for each in path.glob(f"*/{CONFIG}")), key=_natural_order)
    names = ", ".join(each.name for each in inside[:_MAX_NAMED])
    more = ", …" if len(inside) > _MAX_NAMED else ""
    return f"; name one of the runs in it: {names}{more}" if inside else ""


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


def changes_of(start: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a resume that are others than those of the run, by dotted key.

    Args:
        start: an entry of `resumed` in `run.json`. Those of earlier versions have the goals only.
    """
    changes = start.get(CHANGES, start.get("goals"))
    return dict(changes) if isinstance(changes, Mapping) else {}


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
