"""The records that the results page is made of, one of each run, and the certificates of rows.

A row of the page is a directory in `docs/results/records/`, with a record of each seed, and perhaps
a certificate, see `benchmarks.certificates`. Beside a record there may be the output of
`sebulba.evaluate --json`, for figures of policies without noise.
"""

import json
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.certificates import CERTIFICATE, commit_of, keep_certificate
from sebulba.config.loading import split_arguments
from sebulba.storage.names import CHECKSUMS
from sebulba.storage.run_files import Run, read_run

FOLDER = pathlib.Path(__file__).parents[1] / "docs"
COLUMNS = ("env_steps", "wall_time_s", "episode_return_mean")
"""Of the points of a learning curve."""
_MAX_POINTS = 60
_LENGTHS = ("run_dir", "run.total_learner_cycles", "run.stop_at_return")
"""Settings in which a certificate may differ from its row: they change no learner cycle."""
_OF_A_SEED = ("run_dir", "run.stop_at_return", "seed")
"""Settings in which the seeds of a row may differ."""


def add(
    run_dir: pathlib.Path, folder: pathlib.Path = FOLDER, *, name: str | None = None
) -> pathlib.Path:
    """Write the record of a finished run; return its path.

    Args:
        run_dir: the run's directory.
        folder: the folder `docs`.
        name: the row's name; None: the config's.

    A run that was resumed gets no certificate, since only its beginning can be repeated.

    Raises:
        SystemExit: the run has not ended or was interrupted, was resumed with other settings, has
            no mean return or other settings than the row, or no commit has its code.
    """
    run = read_run(run_dir)
    if run.status != "done":
        raise SystemExit(f"{run_dir}: expected a run that is done, got one that is {run.status}")
    record = make_record(run, commit=commit_of(run.process), name=name)
    path = folder / "results" / "records" / record["name"] / f"seed-{record['seed']}.json"
    for other in path.parent.glob("seed-*.json"):
        if keys := other_settings(json.loads(other.read_text()), run.config, but=_OF_A_SEED):
            raise SystemExit(
                f"{run_dir}: expected the settings of {other}, got other {', '.join(keys)}; to"
                f" replace the row, remove {path.parent} first"
            )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    is_first = path == min(path.parent.glob("seed-*.json"), key=_seed_of)
    if is_first and _is_repeatable(run) and "resumed" not in run.process:
        keep_certificate(run_dir, path.parent / CERTIFICATE)
    return path


def certify(
    run_dir: pathlib.Path, folder: pathlib.Path = FOLDER, *, name: str | None = None
) -> pathlib.Path:
    """Write the certificate of a row from a run of its beginning; return its path.

    Args:
        run_dir: of a run with the row's settings and the seed of one of its records, which
            `run.total_learner_cycles` may have ended early.
        folder: the folder `docs`.
        name: the row's name; None: the config's.

    Raises:
        SystemExit: the run is not the beginning of the row, or it cannot be repeated.
    """
    run = read_run(run_dir)
    row = folder / "results" / "records" / (name or _name_of(run))
    record = record_of(row, run.config["seed"])
    commit_of(run.process)
    if other := other_settings(record, run.config):
        raise SystemExit(f"{run_dir}: expected the settings of {row.name}, got other {other}")
    if not _is_repeatable(run):
        raise SystemExit(f"{run_dir}: expected a run with checksums and an exact policy lag")
    keep_certificate(run_dir, row / CERTIFICATE)
    return row / CERTIFICATE


def other_settings(
    record: Mapping[str, Any], config: Mapping[str, Any], *, but: Sequence[str] = _LENGTHS
) -> list[str]:
    """Return the settings of a result that a run has not, but for some.

    What the result lacks had its default then, as a setting that is new.
    """
    return [
        key
        for key, value in record["config"].items()
        if key not in but and config.get(key) != value
    ]


def record_of(row: pathlib.Path, seed: int) -> dict[str, Any]:
    path = row / f"seed-{seed}.json"
    if not path.is_file():
        raise SystemExit(f"{row.name}: expected the record of seed {seed}, got none in {row}")
    record: dict[str, Any] = json.loads(path.read_text())
    return record


def _seed_of(path: pathlib.Path) -> int:
    return int(path.stem.removeprefix("seed-"))


def _is_repeatable(run: Run) -> bool:
    return run.config["learner.policy_lag"] is not None and (run.path / CHECKSUMS).is_file()


def make_record(run: Run, *, commit: str, name: str | None = None) -> dict[str, Any]:
    """Return what the page needs of a run, and what repeats it.

    Raises:
        SystemExit: the run has no mean return, no config to be named after, or was resumed with
            other code or settings, so that nothing repeats it.
    """
    assert run.summary is not None  # the run is done
    command = run.process["argv"][1:]
    _, flags = split_arguments(command)
    for start in run.process.get("resumed", []):
        if (other := commit_of(start)) != commit:
            raise SystemExit(f"{run.path}: expected a run of one commit, got {commit} and {other}")
        _, flags_now = split_arguments(start["argv"][1:])
        if new := sorted(set(flags_now) - set(flags) - {"--run-dir", "--resume"}):
            raise SystemExit(f"{run.path}: was resumed with other settings: {', '.join(new)}")
    measured = [row for row in run.rows if row.get("episode_return_mean") is not None]
    if not measured:
        raise SystemExit(f"{run.path}: expected mean returns, got a run with too few episodes")
    chosen = np.unique(np.linspace(0, len(measured) - 1, _MAX_POINTS).round().astype(int))
    names = ["env_steps", "updates", "wall_time_s", "steps_per_second", "episodes"]
    names += ["best_episode_return_mean", "final_episode_return_mean", "status"]
    return {
        "name": name or _name_of(run),
        "seed": run.config["seed"],
        "arguments": list(_without_run_dir(command)),
        "commit": commit,
        "versions": run.process["versions"],
        "platform": run.process["platform"],
        "config": {**run.config, "run_dir": None},  # a path of one machine
        "summary": {name: run.summary[name] for name in names},
        "curve": [[round(measured[i][name], 2) for name in COLUMNS] for i in chosen],
    }


def _name_of(run: Run) -> str:
    """Return the name of the config that a run was started with."""
    configs, _ = split_arguments(run.process["argv"][1:])
    if not configs:
        raise SystemExit(f"{run.path}: expected --name, since the run was started without a config")
    return pathlib.Path(configs[0]).stem


def _without_run_dir(command: Sequence[str]) -> Iterator[str]:
    """Yield the arguments of `sebulba.train` but for `--run-dir` and `--resume`."""
    arguments = iter(command)
    for each in arguments:
        if each in ("--run-dir", "--resume"):
            next(arguments, None)
        elif not each.startswith(("--run-dir=", "--resume=")):
            yield each


def read_records(folder: pathlib.Path = FOLDER) -> dict[str, list[dict[str, Any]]]:
    """Return the records by the name of the config, in the order of their seeds."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for path in sorted((folder / "results" / "records").glob("*/seed-*.json")):
        groups.setdefault(path.parent.name, []).append(json.loads(path.read_text()))
    return {name: sorted(each, key=lambda x: x["seed"]) for name, each in sorted(groups.items())}


def without_certificate(row: pathlib.Path) -> str:
    paths = sorted(row.glob("seed-*.json"), key=_seed_of)
    if not paths:
        raise SystemExit(f"{row.name}: expected a row of docs/results.md, got none in {row}")
    is_free = json.loads(paths[0].read_text())["config"]["learner.policy_lag"] is None
    return "none: free-running" if is_free else "none"
