"""Write `docs/results.md` and its curves from the records of runs: `python -m benchmarks.results`.

`python -m benchmarks.results --add RUN_DIR …` first adds the record of each finished run: its
config, versions, command, and a thinned learning curve; `--name` names a row of other settings than
those of the config. `--certify RUN_DIR …` keeps the certificate of a run that repeats the beginning
of a row, and `--verify ROW …` trains it again. The page and its curves are functions of the records
in `docs/results/`, of other systems' figures in `peers.json` there, and of `results_by_hand.md`, so
that writing them again gives the same bytes; curves also depend on matplotlib's version. Beside a
record there may be the output of `sebulba.evaluate --json`, for figures of policies without noise.
"""

import argparse
import json
import pathlib
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.certificates import (
    CERTIFICATE,
    Certificate,
    SameCurve,
    commit_of,
    keep_certificate,
    read_certificate,
    record_repetition,
    same_curve,
)
from sebulba.config.loading import split_arguments
from sebulba.evaluation.statistics import MIN_VALUES, bootstrap_interval, interquartile_mean
from sebulba.figures.curves import Group, Run, read_run
from sebulba.figures.drawing import PANELS, draw, save
from sebulba.process import EXIT_DONE, EXIT_OTHER_RESULT, EXIT_ROUNDING
from sebulba.storage.checksums import CHECKSUMS, checksums_of
from sebulba.verify import verify

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FOLDER = pathlib.Path(__file__).parents[1] / "docs"
_BY_HAND = pathlib.Path(__file__).with_name("results_by_hand.md")
_MAX_POINTS = 60
_COLUMNS = ("env_steps", "wall_time_s", "episode_return_mean")
_LENGTHS = ("run_dir", "run.total_learner_cycles", "run.stop_at_return")
"""Settings in which a certificate may differ from its row: they change no learner cycle."""
_REPEATED = ("env_steps", "updates", "episodes", "final_episode_return_mean")
"""Numbers of a result that its repetition has, too."""
_VERDICTS = {
    EXIT_DONE: "the same bits",
    EXIT_ROUNDING: "consistent with rounding",
    EXIT_OTHER_RESULT: "another result",
}
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
time. "Repeat" says how much of the first seed's run [can be repeated](#verify-a-row).

| config | environment | seeds | env steps | return [95 %] | best | wall time | commit | repeat |
|---|---|---|---|---|---|---|---|---|
"""
_CERTIFICATES = """
## Verify a row

A certificate has the checksums of networks, optimizer state and trajectories of a run after some of
its learner cycles, and its machine, versions and commit. This command trains it again, says whether
the bits are the same ([verdicts](reproducibility.md#verify-a-run)), and up to where the mean
returns are those of the result's learning curve. `--cycles 10` repeats ten learner cycles:

<!-- not run: minutes; and another CPU than that of the first run ends it with exit code 9 -->
```sh
python -m benchmarks.results --verify ROW
```

What a certificate says depends on its commit:

- **That of the result**: the result itself is repeated, with its return, if the certificate covers
  the whole run, or else its first learner cycles, which the rest followed from.
- **A later one**, as for results from before there were certificates: with the code of that commit,
  the same command and seed begin with these bits. It does not say that the result's run had them.
  Where the curve is the same up to a number of env steps, both runs chose the same actions up to
  there, in all likelihood. Where it is not, code between the two commits or other versions of
  libraries changed the numbers, and only another training tells whether the return is reached.
- **A commit before the code that you have**: the command names the code first, and other bits are
  "another result" then, as a change of the code is.

Another kind of CPU rounds otherwise. There, the numbers are consistent with rounding for some
learner cycles, until the first other action; from there on the run is another one, as with another
seed. [How far](results_in_detail.md#certificates-on-another-kind-of-cpu) was tried.

Rows that were trained free-running (`learner.policy_lag: null`) have no certificate: their numbers
depend on the threads' timing, so nobody can repeat them, only train them again with other numbers.
In the table, "–" under "repeated on" means: in no second process yet.

"""
_NO_POINT = "no return in so few cycles"

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
    record = make_record(run, commit=commit_of(run.process))
    record["name"] = name or record["name"]
    path = folder / "results" / "records" / record["name"] / f"seed-{record['seed']}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    if path == min(path.parent.glob("seed-*.json"), key=_seed_of) and _is_repeatable(run):
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
    (config,), _ = split_arguments(run.process["argv"][1:])
    row = folder / "results" / "records" / (name or pathlib.Path(config).stem)
    record = _record_of(row, run.config["seed"])
    commit_of(run.process)
    if other := _other_settings(record, run.config):
        raise SystemExit(f"{run_dir}: expected the settings of {row.name}, got other {other}")
    if not _is_repeatable(run):
        raise SystemExit(f"{run_dir}: expected a run with checksums and an exact policy lag")
    keep_certificate(run_dir, row / CERTIFICATE)
    return row / CERTIFICATE


def repeat(
    name: str, folder: pathlib.Path = FOLDER, *, cycles: int | None = None, keep: bool = False
) -> int:
    """Train a row's certificate again, print what is the same, and return the exit code.

    Args:
        name: of the row.
        folder: the folder `docs`.
        cycles: the most learner cycles to repeat; None: all of the certificate.
        keep: whether to add the verdict to the certificate.

    Raises:
        SystemExit: the row has no certificate.
    """
    row = folder / "results" / "records" / name
    certificate = read_certificate(row / CERTIFICATE)
    if certificate is None:
        raise SystemExit(f"{name}: {_without_certificate(row)}")
    record = _record_of(row, certificate.seed)
    print(f"{name}: {_describe_relation(record, certificate)}", flush=True)
    if other := _other_settings(record, certificate.config):
        raise SystemExit(f"{name}: expected the settings of the result, got other {other}")
    again = pathlib.Path(tempfile.mkdtemp(prefix="sebulba-row-")) / "run"
    code = verify(row / CERTIFICATE, cycles=cycles, into=again)
    if code in _VERDICTS:
        run, last = read_run(again), checksums_of(again)[-1]
        if keep:
            record_repetition(
                row / CERTIFICATE,
                process=run.process,
                cycles=last.num_cycles,
                verdict=_VERDICTS[code],
            )
        print(f"the result's curve: {_describe_curve(same_curve(record, run.rows))}")
        if last.env_steps >= record["summary"]["env_steps"] and not _is_result(record, run):
            code = max(code, EXIT_OTHER_RESULT)
    if code == EXIT_DONE:
        shutil.rmtree(again.parent)
        print("the repetition is removed")
    return code


def _is_result(record: Mapping[str, Any], run: Run) -> bool:
    """Print whether a run has the numbers of a result, and return it."""
    summary = run.summary or {}
    other = [key for key in _REPEATED if summary.get(key) != record["summary"][key]]
    for key in other:
        print(f"another {key}: there {record['summary'][key]}, here {summary.get(key)}")
    if not other:
        print(f"the result is the same: {', '.join(_REPEATED)}")
    return not other


def _other_settings(record: Mapping[str, Any], config: Mapping[str, Any]) -> list[str]:
    """Return the settings of a result that a run has not, but for those of its length.

    What the result lacks had its default then, as a setting that is new.
    """
    return [
        key
        for key, value in record["config"].items()
        if key not in _LENGTHS and config.get(key) != value
    ]


def _record_of(row: pathlib.Path, seed: int) -> dict[str, Any]:
    path = row / f"seed-{seed}.json"
    if not path.is_file():
        raise SystemExit(f"{row.name}: expected the record of seed {seed}, got none in {row}")
    record: dict[str, Any] = json.loads(path.read_text())
    return record


def _seed_of(path: pathlib.Path) -> int:
    return int(path.stem.removeprefix("seed-"))


def _is_repeatable(run: Run) -> bool:
    return run.config["learner.policy_lag"] is not None and (run.path / CHECKSUMS).is_file()


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
    rows = "".join(
        _table_row(name, records, _certificate_cell(folder, name, records))
        for name, records in groups.items()
    )
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
        + _certificates(folder, groups)
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


def _table_row(name: str, records: list[dict[str, Any]], certificate: str) -> str:
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
        certificate,
    )
    return f"| {' | '.join(cells)} |\n"


def _certificate_cell(folder: pathlib.Path, name: str, records: list[dict[str, Any]]) -> str:
    """Return how much of a row can be repeated."""
    row = folder / "results" / "records" / name
    certificate = read_certificate(row / CERTIFICATE)
    if certificate is None:
        return _without_certificate(row)
    record = next(each for each in records if each["seed"] == certificate.seed)
    if _is_whole(record, certificate):
        return "whole run"
    text = f"first {certificate.last.num_cycles:,} learner cycles"
    same = certificate.commit == record["commit"]
    return text if same else f"{text}, of `{certificate.commit}`"


def _without_certificate(row: pathlib.Path) -> str:
    paths = sorted(row.glob("seed-*.json"), key=_seed_of)
    if not paths:
        raise SystemExit(f"{row.name}: expected a row of docs/results.md, got none in {row}")
    is_free = json.loads(paths[0].read_text())["config"]["learner.policy_lag"] is None
    return "none: free-running" if is_free else "none"


def _is_whole(record: Mapping[str, Any], certificate: Certificate) -> bool:
    steps = certificate.last.env_steps
    return certificate.commit == record["commit"] and steps == record["summary"]["env_steps"]


def _describe_relation(record: Mapping[str, Any], certificate: Certificate) -> str:
    """Return which part of a result a certificate is of."""
    seed, cycles = certificate.seed, f"{certificate.last.num_cycles:,} learner cycles"
    if _is_whole(record, certificate):
        return f"the whole run of seed {seed}, {cycles}, of commit {certificate.commit}"
    if certificate.commit == record["commit"]:
        return f"the first {cycles} of seed {seed}, of commit {certificate.commit}"
    return (
        f"the result of seed {seed} is of commit {record['commit']}, and its certificate, of the"
        f" first {cycles}, of {certificate.commit}: it says what the later code computes"
    )


def _describe_curve(curve: SameCurve) -> str:
    if not curve.num_compared:
        return _NO_POINT
    if curve.is_whole:
        points = "its only point" if curve.num_points == 1 else f"all {curve.num_points} points"
        return f"the same in {points}, up to {curve.env_steps:,} env steps"
    if not curve.num_points:
        return f"other from its first point on, of {curve.num_compared}"
    return (
        f"the same up to {curve.env_steps:,} env steps, {curve.num_points} of"
        f" {curve.num_compared} points, then other"
    )


def _certificates(folder: pathlib.Path, groups: dict[str, list[dict[str, Any]]]) -> str:
    """Return how a row is verified, and what is known of each certificate."""
    lines = [
        "| row | learner cycles | env steps | the result's learning curve | repeated on |",
        "|---|---|---|---|---|",
    ]
    for name, records in groups.items():
        certificate = read_certificate(folder / "results" / "records" / name / CERTIFICATE)
        if certificate is None:
            continue
        record = next(each for each in records if each["seed"] == certificate.seed)
        repeated = [
            f"{each['cpu']}: {each['verdict']} in {each['cycles']:,} cycles, at `{each['commit']}`"
            for each in certificate.repetitions
        ]
        cells = (
            f"`{name}`, seed {certificate.seed}",
            f"{certificate.last.num_cycles:,}",
            f"{certificate.last.env_steps:,}",
            "its own"
            if certificate.commit == record["commit"]
            else _describe_curve(same_curve(record, certificate.metrics)),
            "; ".join(repeated) or "–",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return _CERTIFICATES + "\n".join(lines) + "\n" if len(lines) > 2 else ""


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


def main() -> None:
    """Add records, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--add", type=pathlib.Path, nargs="+", default=[], metavar="RUN_DIR")
    parser.add_argument("--name", help="of the row of the added runs; default: the config's name")
    parser.add_argument("--certify", type=pathlib.Path, nargs="+", default=[], metavar="RUN_DIR")
    parser.add_argument("--verify", nargs="+", default=[], metavar="ROW", help="writes no page")
    parser.add_argument("--cycles", type=int, help="with --verify: the most learner cycles")
    parser.add_argument("--keep", action="store_true", help="with --verify: keep the verdicts")
    arguments = parser.parse_args()
    if arguments.verify:
        codes = [
            repeat(row, cycles=arguments.cycles, keep=arguments.keep) for row in arguments.verify
        ]
        sys.exit(max(codes))
    written = [add(run_dir, name=arguments.name) for run_dir in arguments.add]
    written += [certify(run_dir, name=arguments.name) for run_dir in arguments.certify]
    page = FOLDER / "results.md"
    page.write_text(make_page())
    figures = draw_curves()
    for path, figure in figures.items():
        save(figure, path)
    written += [page, *figures]
    print(*written, sep="\n")  # at the end: a reader may close the pipe after the first line


if __name__ == "__main__":
    main()
