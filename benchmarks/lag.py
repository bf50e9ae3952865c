"""Write `docs/lag.md` and its figures from records of studies: `python -m benchmarks.lag`.

`python -m benchmarks.lag --add DIRECTORY --task TASK --name NAME --commit COMMIT` first adds the
results of a finished `sebulba.lag`, a line of the task's figure: its command, the commit that ran
it, versions and `lag.json`. The page is a function of the records in `docs/lag/` and of
`lag_by_hand.md`, so that writing it again gives the same bytes; figures also depend on matplotlib's
version.
"""

import argparse
import json
import pathlib
import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from benchmarks.records import FOLDER
from sebulba.config.loading import split_arguments
from sebulba.figures.drawing import save
from sebulba.lag import draw_lags
from sebulba.processes.grid import format_number, with_interval
from sebulba.storage.names import SUMMARY
from sebulba.storage.run_files import read_run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BY_HAND = pathlib.Path(__file__).with_name("lag_by_hand.md")
_RESULTS = "<!-- results -->\n"
_NOTE = "<!-- Written by `python -m benchmarks.lag`; edit benchmarks/lag_by_hand.md instead. -->\n"
_LAGS_SHOWN = (0, 1, 4, 8, 32)
_OWN_FLAGS = (
    "--seed",
    "--seeds",
    "--lags",
    "--jobs",
    "--run-dir",
    "--resume",
    "--learner.policy-lag",
    "--run.stop-at-return",
)


def add(
    directory: pathlib.Path, *, task: str, name: str, commit: str, folder: pathlib.Path = FOLDER
) -> None:
    """Write the record of a study.

    Args:
        directory: the `--run-dir` of `sebulba.lag`, whose runs are all done.
        task: the title of the figure.
        name: of the line.
        commit: the code that ran the study.
        folder: the folder `docs`.

    Raises:
        SystemExit: some runs are not done.
    """
    rows = json.loads((directory / "lag.json").read_text())
    if any(row["done"] < len(row["seeds"]) for row in rows):
        raise SystemExit(f"{directory}: expected a study whose runs are all done")
    run = read_run(next(path.parent for path in sorted(directory.glob(f"*/{SUMMARY}"))))
    (config,), flags = split_arguments(run.process["argv"][1:])
    seeds = rows[0]["seeds"]
    command = [pathlib.Path(config).stem if config.startswith("configs/") else config]
    command += [f"{flag}={text}" for flag, text in flags.items() if flag not in _OWN_FLAGS]
    if rows[0]["goal"] is not None:
        command.append(f"--run.stop-at-return={rows[0]['goal']['return']:g}")
    command += ["--lags", ",".join(str(row["lag"]) for row in rows)]
    command += ["--seeds", f"{seeds[0]}..{seeds[-1]}"]
    record = {
        "task": task,
        "name": name,
        "command": command,
        "commit": commit,
        "versions": run.process["versions"],
        "batch": run.config["actor.num_envs"]
        * run.config["actor.trajectory_length"]
        * run.config["learner.trajectories_per_cycle"],
        "rows": rows,
    }
    path = folder / "lag" / "records" / f"{_slug(task)}--{_slug(name)}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")


def _slug(text: str) -> str:
    return "-".join("".join(c if c.isalnum() else " " for c in text.lower()).split())


def read_records(folder: pathlib.Path = FOLDER) -> dict[str, list[dict[str, Any]]]:
    """Return the records by task, those of a task in the order of their names."""
    tasks: dict[str, list[dict[str, Any]]] = {}
    records = [json.loads(path.read_text()) for path in (folder / "lag" / "records").glob("*.json")]
    for record in sorted(records, key=lambda record: (record["task"], record["name"])):
        tasks.setdefault(record["task"], []).append(record)
    return tasks


def make_page(folder: pathlib.Path = FOLDER) -> str:
    """Return the text of the page."""
    before, after = _BY_HAND.read_text().split(_RESULTS)
    title, _, rest = before.partition("\n")
    tasks = read_records(folder)
    sections = [_section(task, records) for task, records in tasks.items()]
    results = "\n".join([_costs(tasks), *sections])
    # A line of several figures has one command.
    commands = dict.fromkeys(
        f"python -m sebulba.lag {shlex.join(record['command'])}  # at {record['commit']}\n"
        for records in tasks.values()
        for record in records
    )
    block = f"```sh\n{''.join(commands)}```\n"
    return f"{title}\n\n{_NOTE}{rest}{results}{after}\n<!-- not run: it takes hours -->\n{block}"


def _costs(tasks: dict[str, list[dict[str, Any]]]) -> str:
    """Return a table of the env steps to the goal with a lag, over those without."""
    lines = [
        "### In one line for each agent",
        "",
        "Env steps to the goal over those with lag 0; in bold where the intervals do not overlap:",
        "",
        "| task | agent | lag 1 | lag 8 | env steps per learner cycle |",
        "|---|---|---|---|---|",
    ]
    shown = set()
    for task, records in tasks.items():
        for record in records:
            command = shlex.join(record["command"])
            goals = {row["lag"]: row["goal"] for row in record["rows"]}
            if command in shown or "--agent.learning-rate" in command or goals.get(0) is None:
                continue
            shown.add(command)
            costs = [_cost(goals[lag], goals[0]) if lag in goals else "–" for lag in (1, 8)]
            cells = [task, record["name"], *costs, f"{record['batch']:,}"]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cost(goal: dict[str, Any], without: dict[str, Any]) -> str:
    """Return the cell of a lag, from the env steps to the goal with it and without."""
    if not without["reached"]:
        return "–"
    if goal["reached"]:
        is_bound = goal["reached"] < len(goal["env_steps"])
        text = f"{'≥ ' if is_bound else ''}{goal['iqm'] / without['iqm']:.2f}"
    else:
        text = "not reached"
    if goal["low"] is None or without["low"] is None:
        return text
    overlap = goal["low"] <= without["high"] and without["low"] <= goal["high"]
    return text if overlap else f"**{text}**"


def _section(task: str, records: list[dict[str, Any]]) -> str:
    """Return a task's figure, and its tables of returns and of env steps to the goal."""
    goal = records[0]["rows"][0]["goal"]
    lines = [
        f"### {task}",
        "",
        f"![{task}: returns over the policy lag](lag/{_slug(task)}.svg)",
        "",
    ]
    total = records[0]["rows"][0]["returns"][-1]["env_steps"]
    lines += [f"Mean return after {total:,} env steps:", ""]
    lines += _table(records, lambda row: _return_cell(row["returns"][-1]))
    if goal is not None:
        lines += ["", f"Env steps until the mean return is {goal['return']:g}:", ""]
        lines += _table(records, lambda row: _goal_cell(row["goal"]))
    return "\n".join(lines) + "\n"


def _table(records: list[dict[str, Any]], cell: Callable[[dict[str, Any]], str]) -> list[str]:
    lags = [row["lag"] for row in records[0]["rows"] if row["lag"] in _LAGS_SHOWN]
    columns = ["agent", "env steps per learner cycle", *(f"lag {lag}" for lag in lags)]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for record in records:
        by_lag = {row["lag"]: row for row in record["rows"]}
        values = [cell(by_lag[lag]) if lag in by_lag else "–" for lag in lags]
        cells = [record["name"], f"{record['batch']:,}", *values]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _return_cell(returns: dict[str, Any]) -> str:
    return with_interval(returns["iqm"], returns["low"], returns["high"])


def _goal_cell(goal: dict[str, Any]) -> str:
    text = f"{_short(goal['iqm'])} [{_short(goal['low'])}, {_short(goal['high'])}]"
    reached, count = goal["reached"], len(goal["env_steps"])
    if reached == count:
        return text
    return f"≥ {text}, {reached} of {count}" if reached else "not reached"


def _short(value: float | None) -> str:
    if value is None:  # of too few seeds for an interval
        return "–"
    if value >= 1_000_000:
        return f"{value / 1_000_000:.2f}M"
    return f"{format_number(round(value / 1000, 1))}k"


def draw_figures(folder: pathlib.Path = FOLDER) -> dict[pathlib.Path, "Figure"]:
    """Return the figure of each task, by its path."""
    return {
        folder / "lag" / f"{_slug(task)}.svg": draw_lags(
            {record["name"]: record["rows"] for record in records}, title=task
        )
        for task, records in read_records(folder).items()
    }


def main() -> None:
    """Add a record, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--add", type=pathlib.Path, metavar="DIRECTORY")
    parser.add_argument("--task", help="the title of the figure that the record is added to")
    parser.add_argument("--name", help="of the record's line")
    parser.add_argument("--commit", help="the code that ran the study")
    arguments = parser.parse_args()
    if arguments.add is not None:
        add(arguments.add, task=arguments.task, name=arguments.name, commit=arguments.commit)
    page = FOLDER / "lag.md"
    page.write_text(make_page())
    for path, figure in draw_figures().items():
        save(figure, path)
    print(f"wrote {page}")


if __name__ == "__main__":
    main()
