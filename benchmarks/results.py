"""Write `docs/results.md` and its curves from the records of runs: `python -m benchmarks.results`.

`python -m benchmarks.results --add RUN_DIR …` first adds the record of each finished run: its
config, versions, command, and a thinned learning curve; `--name` names a row of other settings than
those of the config. The page and its curves are functions of the records in `docs/results/`, of
other systems' figures in `peers.json` there, and of `results_by_hand.md`, so that writing them
again gives the same bytes; curves also depend on matplotlib's version. Beside a record there may
be the output of `sebulba.evaluate --json`, for figures of policies without noise.
"""

import argparse
import datetime
import json
import pathlib
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sebulba.config.loading import split_arguments
from sebulba.evaluation.statistics import MIN_VALUES, bootstrap_interval, interquartile_mean
from sebulba.figures.curves import Group, Run, read_run
from sebulba.figures.drawing import PANELS, draw, save

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FOLDER = pathlib.Path(__file__).parents[1] / "docs"
_BY_HAND = pathlib.Path(__file__).with_name("results_by_hand.md")
_MAX_POINTS = 60
_COLUMNS = ("env_steps", "wall_time_s", "episode_return_mean")
_HEADER = """# Results

<!-- Written by `python -m benchmarks.results`; edit benchmarks/results_by_hand.md instead. -->

What the configs that come with Sebulba reach, with [curves](#learning-curves),
[figures of other systems](#other-systems), [commands](#commands), and
[how the results came about](results_in_detail.md).

## Returns

Each row is one config, trained with its command on each seed. "Return" is the mean return of the
last `run.return_window` training episodes at the end of a run: the interquartile mean over the
seeds, and its 95 % bootstrap interval, or "–" below three seeds. "Best" is the range of the seeds'
best mean returns. The wall time is the slowest run's, and the machine did other work at the same
time.

| config | environment | seeds | env steps | return [95 %] | best | wall time | commit |
|---|---|---|---|---|---|---|---|
"""
_PEERS = """
## Other systems

Figures of other systems for the same tasks and numbers of env steps:

| config | ours | ours without noise | other system | its return | how it was measured |
|---|---|---|---|---|---|
"""
_CURVES = """
## Learning curves

As drawn by `sebulba.plot`: the interquartile mean over the seeds, with its 95 %
bootstrap interval for three or more seeds. A seed that has reached its goal keeps its last return.
The wall time is that of each config's fastest seed, since the machine did other work at the same
time.
"""
_COMMANDS = """
## Commands

The command of the first seed of each row:

<!-- not run: it takes hours -->
```sh
"""


def add(
    run_dir: pathlib.Path, folder: pathlib.Path = FOLDER, *, name: str | None = None
) -> pathlib.Path:
    """Write the record of a finished run; return its path.

    Args:
        run_dir: the run's directory.
        folder: the folder `docs`.
        name: the row's name; None: the config's.

    Raises:
        SystemExit: the run has not ended or was interrupted, or no commit has the code.
    """
    run = read_run(run_dir)
    if run.status != "done":
        raise SystemExit(f"{run_dir}: expected a run that is done, got one that is {run.status}")
    if changes := _uncommitted():
        raise SystemExit(
            f"{run_dir}: expected code that a commit holds, got changes of {', '.join(changes)};"
            " commit them and train again"
        )
    committed, started = _git("log", "-1", "--format=%cI"), run.process["started_at"]
    if datetime.datetime.fromisoformat(committed) > datetime.datetime.fromisoformat(started):
        raise SystemExit(
            f"{run_dir}: expected a run of this checkout's commit, which is of {committed}, got one"
            f" that started at {started}; add it in a checkout of the commit that trained it"
        )
    record = make_record(run, commit=_git("rev-parse", "--short=7", "HEAD"))
    record["name"] = name or record["name"]
    path = folder / "results" / "records" / record["name"] / f"seed-{record['seed']}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    return path


def make_record(run: Run, *, commit: str) -> dict[str, Any]:
    """Return what the page needs of a run, and what repeats it."""
    assert run.summary is not None  # the run is done
    command = run.process["argv"][1:]
    (config,), _ = split_arguments(command)
    measured = [row for row in run.rows if row.get("episode_return_mean") is not None]
    chosen = np.unique(np.linspace(0, len(measured) - 1, _MAX_POINTS).round().astype(int))
    names = ["env_steps", "updates", "wall_time_s", "steps_per_second", "episodes"]
    names += ["best_episode_return_mean", "final_episode_return_mean", "status"]
    return {
        "name": pathlib.Path(config).stem,
        "seed": run.config["seed"],
        "arguments": list(_without_run_dir(command)),
        "commit": commit,
        "versions": run.process["versions"],
        "platform": run.process["platform"],
        "config": {**run.config, "run_dir": None},  # a path of one machine
        "summary": {name: run.summary[name] for name in names},
        "curve": [[round(measured[i][name], 2) for name in _COLUMNS] for i in chosen],
    }


def make_page(folder: pathlib.Path = FOLDER) -> str:
    """Return the text of the page."""
    groups = read_records(folder)
    rows = "".join(_table_row(name, records) for name, records in groups.items())
    curves = _CURVES + "".join(
        f"\n![Returns in {task} over env steps and wall time](results/{_file_name(task)})\n"
        for task in _tasks(groups)
    )
    commands = "".join(
        f"python -m sebulba.train {shlex.join(map(_shipped, records[0]['arguments']))}\n"
        for records in groups.values()
    )
    return (
        _HEADER
        + rows
        + curves
        + _peers(folder, groups)
        + _COMMANDS
        + commands
        + "```\n\n"
        + _BY_HAND.read_text()
    )


def draw_curves(folder: pathlib.Path = FOLDER) -> dict[pathlib.Path, "Figure"]:
    """Return a figure of the curves in each environment, by its path."""
    groups = read_records(folder)
    panels = [PANELS["returns"], PANELS["returns_over_time"]]
    return {
        folder / "results" / _file_name(task): draw(
            [_group(name, groups[name]) for name in names], panels
        )
        for task, names in _tasks(groups).items()
    }


def _group(name: str, records: list[dict[str, Any]]) -> Group:
    """Return the runs of a row of the table, which all take the wall time of the fastest."""
    curves = [np.array(record["curve"], np.float64) for record in records]  # [points, 3] each
    steps, seconds, _ = min(curves, key=lambda curve: curve[-1, 1] / curve[-1, 0]).T
    for curve in curves:
        beyond = np.maximum(curve[:, 0] - steps[-1], 0.0) * seconds[-1] / steps[-1]
        curve[:, 1] = np.interp(curve[:, 0], steps, seconds) + beyond
    config = records[0]["config"]
    return Group(
        algorithm=name,
        environment=f"{config['env.suite']} {config['env.id']}",
        runs=tuple(
            Run(
                path=pathlib.Path(name),
                config=record["config"],
                rows=[dict(zip(_COLUMNS, point, strict=True)) for point in curve.tolist()],
                summary=record["summary"],
                process={},
            )
            for record, curve in zip(records, curves, strict=True)
        ),
    )


def read_records(folder: pathlib.Path = FOLDER) -> dict[str, list[dict[str, Any]]]:
    """Return the records by the name of the config, in the order of their seeds."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for path in sorted((folder / "results" / "records").glob("*/seed-*.json")):
        groups.setdefault(path.parent.name, []).append(json.loads(path.read_text()))
    return {name: sorted(each, key=lambda x: x["seed"]) for name, each in sorted(groups.items())}


def _tasks(groups: dict[str, list[dict[str, Any]]]) -> dict[str, list[str]]:
    """Return the names of all rows of the same environment, by its ID."""
    tasks: dict[str, list[str]] = {}
    for name, records in groups.items():
        tasks.setdefault(records[0]["config"]["env.id"], []).append(name)
    return tasks


def _file_name(task: str) -> str:
    return task.lower().replace("/", "-") + ".svg"


def _table_row(name: str, records: list[dict[str, Any]]) -> str:
    summaries = [each["summary"] for each in records]
    final = [each["final_episode_return_mean"] for each in summaries]
    best = [each["best_episode_return_mean"] for each in summaries]
    steps = [each["env_steps"] for each in summaries]
    config = records[0]["config"]
    interval = "–"
    if len(final) >= MIN_VALUES:
        low, high = bootstrap_interval(np.array(final), seed=0)
        interval = f"{low:.2f}, {high:.2f}"
    cells = (
        f"`{name}`",
        f"{config['env.suite']} {config['env.id']}",
        ", ".join(str(each["seed"]) for each in records),
        f"{min(steps):,} – {max(steps):,}" if min(steps) < max(steps) else f"{steps[0]:,}",
        f"{interquartile_mean(np.array(final)):.2f} [{interval}]",
        f"{min(best):.2f} – {max(best):.2f}",
        f"{max(each['wall_time_s'] for each in summaries):,.0f} s",
        ", ".join(f"`{each}`" for each in dict.fromkeys(each["commit"] for each in records)),
    )
    return f"| {' | '.join(cells)} |\n"


def _peers(folder: pathlib.Path, groups: dict[str, list[dict[str, Any]]]) -> str:
    """Return the table of other systems' figures for the configs that have records."""
    path = folder / "results" / "peers.json"
    rows = ""
    for peer in json.loads(path.read_text()) if path.is_file() else []:
        if peer["config"] in groups:
            finals = [
                each["summary"]["final_episode_return_mean"] for each in groups[peer["config"]]
            ]
            own = f"{interquartile_mean(np.array(finals)):,.1f}"
            name = f"`{peer['config']}`"
            greedy = _greedy(folder / "results" / "records" / peer["config"])
            cells = (name, own, greedy, peer["system"], peer["return"], peer["how"])
            rows += f"| {' | '.join(cells)} |\n"
    return _PEERS + rows if rows else ""


def _greedy(directory: pathlib.Path) -> str:
    """Return the interquartile mean over seeds of evaluations in the directory of the records."""
    files = sorted(directory.glob("evaluation-*.json"))
    means = [json.loads(path.read_text())["statistics"]["return_mean"] for path in files]
    return f"{interquartile_mean(np.array(means)):,.1f}" if means else "–"


def _without_run_dir(command: Sequence[str]) -> Iterator[str]:
    """Yield the arguments of `sebulba.train` but for `--run-dir` and `--resume`."""
    arguments = iter(command)
    for each in arguments:
        if each in ("--run-dir", "--resume"):
            next(arguments, None)
        else:
            yield each


def _shipped(argument: str) -> str:
    """Return the name of a config that comes with Sebulba, which works without a checkout."""
    path = pathlib.PurePath(argument)
    return path.stem if path.parent.name == "configs" and path.suffix == ".yaml" else argument


def _uncommitted() -> list[str]:
    """Return the files of the code and the configs that the checked-out commit does not hold."""
    changes = _git("status", "--porcelain", "--", "sebulba", "agents", "configs")
    return [line.split(maxsplit=1)[1] for line in changes.splitlines()]


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(FOLDER.parent), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def main() -> None:
    """Add records, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--add", type=pathlib.Path, nargs="+", default=[], metavar="RUN_DIR")
    parser.add_argument("--name", help="of the row of the added runs; default: the config's name")
    arguments = parser.parse_args()
    written = [add(run_dir, name=arguments.name) for run_dir in arguments.add]
    page = FOLDER / "results.md"
    page.write_text(make_page())
    figures = draw_curves()
    for path, figure in figures.items():
        save(figure, path)
    written += [page, *figures]
    print(*written, sep="\n")  # at the end: a reader may close the pipe after the first line


if __name__ == "__main__":
    main()
