"""Write `docs/results.md` and its curves from the records of runs: `python -m benchmarks.results`.

`python -m benchmarks.results --add RUN_DIR …` first adds the record of each finished run: its
config, versions, command, and a thinned learning curve; `--name` names a row of other settings than
those of the config. `--certify RUN_DIR …` keeps the certificate of a run that repeats the beginning
of a row, and `--verify ROW …` trains it again. The page and its curves are functions of the records
in `docs/results/`, of other systems' figures in `peers.json` there, and of `results_by_hand.md`, so
that writing them again gives the same bytes; curves also depend on matplotlib's version.
"""

import argparse
import json
import pathlib
import shlex
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.certificates import (
    CERTIFICATE,
    describe_curve,
    is_whole,
    read_certificate,
    same_curve,
)
from benchmarks.records import (
    COLUMNS,
    FOLDER,
    add,
    certify,
    read_records,
    without_certificate,
)
from benchmarks.repetitions import repeat_all
from sebulba.evaluation.statistics import MIN_VALUES, bootstrap_interval, interquartile_mean
from sebulba.figures.curves import Group
from sebulba.figures.drawing import PANELS, draw, save
from sebulba.storage.run_files import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BY_HAND = pathlib.Path(__file__).with_name("results_by_hand.md")
_HEADER = """# Results

<!-- Written by `python -m benchmarks.results`; edit benchmarks/results_by_hand.md instead. -->

What the configs that come with Sebulba reach, with [curves](#learning-curves),
[figures of other systems](#other-systems), [commands](#commands), and
[how the results came about](results_in_detail.md).

## Returns

Each row is one config, trained with its command on each seed; the returns of each seed are in
[its record](results/records). "Return" is the mean return of the last `run.return_window` training
episodes at the end of a run: the interquartile mean over the seeds, and its 95 % bootstrap
interval, or "–" below three seeds. With three seeds, these are no more than the mean and the range.
"Best" is the range of the seeds' best mean returns. The wall time is the slowest run's, and the
machine did other work at the same time.

"Lag" is how many learner cycles older the networks are that act. With 0, acting and learning take
turns, in threads or in one program; from 1 on they overlap.

"Repeat" is what [a certificate repeats](#verify-a-row): the whole run of its seed, or only its
first learner cycles. If it names another commit, the code has changed since the result, and it
repeats the beginning of a later run with the same command, which mostly had other returns from the
first on.

"""
_HEADS = (
    "| config | environment | lag | seeds | env steps | return [95 %] | best | wall time | commit"
    " | repeat |\n|---|---|---|---|---|---|---|---|---|---|\n"
)
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
- **A later one**, as for results from before there were certificates: a later run of the same
  command and seed is repeated. Whether that is the same run, the column of the learning curve says.
  Where the curves differ, code or libraries changed in between, and only another training tells
  whether the return is reached.
- **One before the code that you have**: the command names the code first, and other bits are
  "another result" then, as a change of the code is.

Another kind of CPU rounds otherwise. There, the numbers are consistent with rounding for some
learner cycles, until the first other action; from there on the run is another one, as with another
seed. [How far](results_in_detail.md#certificates-on-another-kind-of-cpu) was tried.

In the table, "–" under "repeated on" means: in no second process yet. "Other CPU features" are
other ones than those of the certificate's CPU, which may have the same name.

"""

_SUITES = {
    "MinAtar": [
        f"{game}-MinAtar"
        for game in ("Asterix", "Breakout", "Freeway", "Seaquest", "SpaceInvaders")
    ],
    "MuJoCo": ["Ant-v4", "HalfCheetah-v4", "Hopper-v4", "Swimmer-v4", "Walker2d-v4"],
}
_BY_SUITE = """
## By suite

The same returns, with the tasks of a suite beside each other; "–" was not trained. On MinAtar, the
settings of an agent are the same in all games, but for IMPALA's entropy bonus and learning rate on
Asterix, and for those of Gumbel MuZero on Asterix; it has those that were chosen on Breakout in the
other games, where it is behind Double DQN ([search](search.md#minatar)). On MuJoCo, PPO has those
of `ppo_halfcheetah` on Ant and HalfCheetah, on Swimmer with another discount, λ and trajectory
length, and those of `ppo_hopper` on the others; SAC has another learning rate on Walker2d and
Swimmer, another discount on Swimmer, and LayerNorm in the critics on Ant.
"""
_PEERS = """
## Other systems

**Others are ahead**, with PPO on MinAtar: gymnax-blines on Asterix and Freeway, with a larger
network, other rates and twice as many env steps. Of two seeds of PureJaxRL, whose settings ours
has, one is above our mean on Asterix, Breakout and Freeway. On Seaquest,
[the seed decides](results_in_detail.md#ppo-on-minatar-seaquest) in both. On Swimmer,
Stable-Baselines3 has 346 with SAC beside 294 without noise, and 282 with PPO beside 273; on Ant,
its SAC is [ahead of one of our three seeds](results_in_detail.md#sac-on-ant). Others are ahead
[on Crafter](results_in_detail.md#craftax-classic), too.

The paper of MinAtar (Young and Tian 2019, arXiv 1903.03176) has curves, but no numbers. Figures of
other systems for the same tasks, and for the same numbers of env steps unless said:

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

The command of a row is `python -m sebulba.train ROW --seed SEED`, and of these rows:

<!-- not run: it takes hours -->
```sh
"""


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
    arguments = {
        name: [_shipped(each) for each in records[0]["arguments"]]
        for name, records in groups.items()
    }
    commands = "".join(
        f"python -m sebulba.train {shlex.join(each)}\n"
        for name, each in arguments.items()
        if each[0] != name
    )
    return (
        _HEADER
        + _HEADS
        + rows
        + _by_suite(groups)
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
                rows=[dict(zip(COLUMNS, point, strict=True)) for point in curve.tolist()],
                summary=record["summary"],
                process={},
            )
            for record, curve in zip(records, curves, strict=True)
        ),
    )


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
    best = [each["best_episode_return_mean"] for each in summaries]
    steps = [each["env_steps"] for each in summaries]
    config = records[0]["config"]
    cells = (
        f"`{name}`",
        f"{config['env.suite']} {config['env.id']}",
        _lag(config),
        ", ".join(str(each["seed"]) for each in records),
        f"{min(steps):,} – {max(steps):,}" if min(steps) < max(steps) else f"{steps[0]:,}",
        _mean_and_interval(records),
        f"{min(best):.2f} – {max(best):.2f}",
        f"{max(each['wall_time_s'] for each in summaries):,.0f} s",
        ", ".join(f"`{each}`" for each in dict.fromkeys(each["commit"] for each in records)),
        certificate,
    )
    return f"| {' | '.join(cells)} |\n"


def _lag(config: dict[str, Any]) -> str:
    lag = str(config["learner.policy_lag"])
    return lag if config["run.mode"] == "threads" else f"{lag}, one program"


def _mean_and_interval(records: list[dict[str, Any]]) -> str:
    """Return the interquartile mean over the seeds of the last returns, with its interval."""
    final = np.array([each["summary"]["final_episode_return_mean"] for each in records])
    interval = "–"
    if len(final) >= MIN_VALUES:
        low, high = bootstrap_interval(final, seed=0)
        interval = f"{low:.2f}, {high:.2f}"
    return f"{interquartile_mean(final):.2f} [{interval}]"


def _by_suite(groups: dict[str, list[dict[str, Any]]]) -> str:
    """Return for each suite that has records a table of agents by tasks."""
    tables = ""
    for suite, tasks in _SUITES.items():
        cells: dict[tuple[str, int], dict[str, str]] = {}
        for records in groups.values():
            config = records[0]["config"]
            if config["env.id"] in tasks:
                agent, env_steps = config["agent.name"], config["run.total_env_steps"]
                row = cells.setdefault((agent, env_steps), {})
                row[config["env.id"]] = _mean_and_interval(records)
        heads = " | ".join(task.removesuffix(f"-{suite}") for task in tasks)
        if cells:
            tables += f"\n| {suite} | env steps | {heads} |\n|---|---|{'---|' * len(tasks)}\n"
        for (agent, env_steps), row in cells.items():
            shown = " | ".join(row.get(task, "–") for task in tasks)
            tables += f"| `{agent}` | {env_steps:,} | {shown} |\n"
    return _BY_SUITE + tables if tables else ""


def _certificate_cell(folder: pathlib.Path, name: str, records: list[dict[str, Any]]) -> str:
    """Return how much of a row can be repeated."""
    row = folder / "results" / "records" / name
    certificate = read_certificate(row / CERTIFICATE)
    if certificate is None:
        return without_certificate(row)
    record = next(each for each in records if each["seed"] == certificate.seed)
    if is_whole(record, certificate):
        return "whole run"
    text = f"first {certificate.last.num_cycles:,} learner cycles"
    same = certificate.commit == record["commit"]
    return text if same else f"{text}, of `{certificate.commit}`"


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
            else describe_curve(same_curve(record, certificate.metrics)),
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
    if arguments.cycles is not None and arguments.cycles < 1:
        parser.error(f"--cycles: expected at least 1, got {arguments.cycles}")
    if arguments.verify:
        sys.exit(repeat_all(arguments.verify, cycles=arguments.cycles, keep=arguments.keep))
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
