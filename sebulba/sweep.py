"""Train with several settings and seeds: `python -m sebulba.sweep CONFIG --FLAG A,B --seeds 0..2`.

One process for each run; the results are compared in a table and a plot. Imports no jax before the
results are read.
"""

import collections
import dataclasses
import itertools
import json
import os
import pathlib
import re
import statistics
import sys
from collections.abc import Sequence
from typing import Any

from sebulba.config import Config, flags
from sebulba.config.loading import load_config, split_arguments
from sebulba.config.schema import key_types
from sebulba.config.validation import value_of
from sebulba.errors import ConfigError, escaped
from sebulba.process import EXIT_CONFIG, EXIT_DONE, program, run_command
from sebulba.processes.command_line import take_count, take_seeds
from sebulba.processes.runs import TrainingRun, train_runs

_USAGE = f"usage: {program('sweep')} CONFIG [--section.field VALUE,VALUE ...] [--seeds 0..2]"
_DESCRIPTION = """\
Trains a config with every combination of the values that flags list, each with every seed. Prints
the interquartile mean of the final returns over seeds with its 95 % bootstrap interval, and writes
sweep.json and, with the extra `plot`, sweep.png. Start the same command again to resume.

--section.field A,B   values of a setting; commas inside of brackets or quotes separate none
--seeds 0..2          seeds of each combination, or a list: 0,3,7; default: the config's seed
--run-dir DIRECTORY   holds a directory for each run; default: runs/sweep-<config>
--jobs N              number of runs at a time; default: 1
--list                print the runs with their numbers, and train nothing

As a task of a Slurm array, trains the run with the number of the task; the last task that ends
writes the results."""
_TASK = "SLURM_ARRAY_TASK_ID"
_MAX_RUNS = 10_000
_PIPE_WIDTH = 120


def main() -> None:
    """Parse the command line, train, report, and exit with the first exit code other than 0."""
    argv = sys.argv[1:]
    if any(argument in ("-h", "--help") for argument in argv):
        config = [argument for argument in argv[:1] if not argument.startswith("-")]
        flags.parse([*config, "--help"], program("sweep"), _DESCRIPTION)
    sys.exit(sweep(argv))


def sweep(argv: Sequence[str]) -> int:
    """Train the runs of a command line, report their results, and return the exit code."""
    try:
        parsed = parse_sweep([argument for argument in argv if argument != "--list"])
        points, task = parsed.points, os.environ.get(_TASK)
        if task is not None:
            if not (task.isdecimal() and int(task) < len(points)):
                raise ConfigError(
                    f"{_TASK}: expected less than the {len(points)} runs of the sweep, got {task}."
                    f" Set sbatch --array=0-{len(points) - 1}"
                )
            points = (points[int(task)],)
    except ConfigError as error:
        print(f"{_USAGE}\n{escaped(str(error))}", file=sys.stderr)
        return EXIT_CONFIG
    if "--list" in argv:
        for number, point in enumerate(parsed.points):
            print(f"{number}  {point.label}{'  done' if point.is_done else ''}")
        return EXIT_DONE
    code = train_points(parsed, points)
    num_done = sum(point.is_done for point in parsed.points)
    if len(points) < len(parsed.points) and num_done < len(parsed.points):
        _say(f"{num_done} of {len(parsed.points)} runs are done; the last one writes the results")
    elif num_done:
        report_sweep(parsed)
    return code


@dataclasses.dataclass(frozen=True, kw_only=True)
class Point:
    """One run of a sweep."""

    settings: dict[str, str]  # the flags with several values, and this run's value
    seed: int
    directory: pathlib.Path
    argv: tuple[str, ...]  # the command line of `sebulba.train`

    @property
    def label(self) -> str:
        """The name of the run in messages."""
        return self.directory.name

    @property
    def summary(self) -> dict[str, Any]:
        """The run's `summary.json`; empty if it has not ended yet."""
        try:
            summary = json.loads((self.directory / "summary.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return summary if isinstance(summary, dict) else {}

    @property
    def is_done(self) -> bool:
        """Whether the run has reached its goal."""
        return self.summary.get("status") == "done"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sweep:
    """All runs of a sweep."""

    directory: pathlib.Path
    points: tuple[Point, ...]
    num_jobs: int  # runs at a time


def parse_sweep(argv: Sequence[str]) -> Sweep:
    """Return the sweep that a command line describes.

    Every flag may have several values, separated by commas: `--agent.learning-rate 1e-3,3e-4`.

    Raises:
        ConfigError: a flag or the config of a run is wrong.
    """
    seeds, argv = take_seeds(argv)
    num_jobs, argv = take_count(argv, "--jobs")
    positionals, given = split_arguments(argv)
    if len(positionals) != 1:
        raise ConfigError(f"expected one config, got {' '.join(positionals) or 'none'}")
    (path,) = positionals
    if "--resume" in given:
        raise ConfigError("--resume: a sweep resumes by itself. Start the same command again")
    name = given.pop("--run-dir", f"runs/sweep-{pathlib.Path(path).stem}")
    directory = pathlib.Path(os.path.expandvars(name)).expanduser()
    values = {flag: split_values(text) for flag, text in given.items()}
    fixed = {flag: texts[0] for flag, texts in values.items() if len(texts) == 1}
    axes = {flag: texts for flag, texts in values.items() if len(texts) > 1}
    points: list[Point] = []
    for choice in itertools.product(*axes.values()):
        settings = dict(zip(axes, choice, strict=True))
        arguments = [f"{flag}={text}" for flag, text in {**fixed, **settings}.items()]
        config = load_config(path, arguments)
        for seed in [config.seed] if seeds is None else seeds:
            parts = [f"{flag.removeprefix('--')}={text}" for flag, text in settings.items()]
            own = directory / re.sub(r"[^\w.=,+-]", "_", ",".join([*parts, f"seed-{seed}"]))
            last = [f"--seed={seed}", f"--run-dir={own}"]
            if (own / "config.yaml").is_file():
                _check_earlier_run(own, load_config(path, [*arguments, *last]))
            argv_of_run = (path, *arguments, *last)
            points.append(Point(settings=settings, seed=seed, directory=own, argv=argv_of_run))
    if len(points) > _MAX_RUNS:
        raise ConfigError(f"expected at most {_MAX_RUNS:,} runs, got {len(points):,}")
    for label, count in collections.Counter(point.label for point in points).items():
        if count > 1:
            raise ConfigError(f"expected every combination of values once, got {label} twice")
    return Sweep(directory=directory, points=tuple(points), num_jobs=num_jobs or 1)


def split_values(text: str) -> list[str]:
    """Return the values that commas separate, except those inside of brackets or quotes."""
    values, depth, quote = [""], 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character in "[{(":
            depth += 1
        elif character in "]})":
            depth -= 1
        if character == "," and not depth and not quote:
            values.append("")
        else:
            values[-1] += character
    return [each.strip() for each in values]


def _check_earlier_run(directory: pathlib.Path, config: Config) -> None:
    """Check that an earlier run in the directory is the one that the sweep asks for."""
    earlier = load_config(str(directory / "config.yaml"))
    keys = {**key_types(type(earlier.agent)), **key_types(type(config.agent))}
    # `init_from` is stored as the exact checkpoint.
    ignored = ("run_dir", "resume", "init_from", "distributed.")
    missing = object()

    def value(config: Config, key: str) -> Any:
        try:
            return value_of(config, key)
        except AttributeError:  # another agent's
            return missing

    def differing_keys(config: Config) -> list[str]:
        compared = (key for key in keys if not key.startswith(ignored))
        return [key for key in compared if value(earlier, key) != value(config, key)]

    differing = differing_keys(config)
    if differing and config.open_defaults:
        from sebulba.run.task_defaults import with_task_defaults  # imports jax

        differing = differing_keys(with_task_defaults(config).config)
    if differing:
        raise ConfigError(
            f"{directory} holds a run with another {', '.join(differing)}. Choose another"
            " directory: --run-dir DIRECTORY"
        )


def train_points(sweep: Sweep, points: Sequence[Point]) -> int:
    """Train the runs that are not done yet; resume those that were interrupted.

    Returns:
        The exit code, as `train_runs` returns it.
    """
    left = {point.label: point for point in points if not point.is_done}
    if len(left) < len(points):
        _say(f"{len(points) - len(left)} of {len(points)} runs are done already")
    logs = sweep.directory / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    runs = []
    for label, point in left.items():
        checkpoints = point.directory / "checkpoints"
        has_learned = checkpoints.is_dir() and any(
            each.name.isdecimal() for each in checkpoints.iterdir()
        )
        argv = (*point.argv, "--resume=latest") if has_learned else point.argv
        log = logs / f"{label}.log"
        runs.append(TrainingRun(name=label, directory=point.directory, argv=argv, log=log))
    numbers = itertools.count(1)

    def on_start(run: TrainingRun) -> None:
        _say(f"[{next(numbers)}/{len(runs)}] {run.name}")

    def on_end(run: TrainingRun, code: int) -> None:
        summary = left[run.name].summary
        final = summary.get("final_episode_return_mean")
        if code:
            _say(f"{run.name} ended with exit code {code}: {run.log}")
        else:
            shown = "no mean return" if final is None else f"mean return {final:,.2f}"
            _say(f"{run.name} done: {shown} after {summary.get('env_steps', 0):,} env steps")

    return train_runs(runs, num_jobs=sweep.num_jobs, on_start=on_start, on_end=on_end)


def _say(text: str) -> None:
    """Print a line of progress; results alone go to standard output."""
    print(text, file=sys.stderr, flush=True)


def report_sweep(sweep: Sweep) -> None:
    """Print the table of a sweep, and write `sweep.json` and `sweep.png`.

    The return of a run is the mean over its last `run.return_window` episodes.
    """
    # Importing numpy and matplotlib takes a second.
    from sebulba.figures import plot_runs
    from sebulba.storage.metrics.files import write_json

    rows = summarize_sweep(sweep)
    write_json(sweep.directory / "sweep.json", rows)
    _show(sweep, rows)
    picture = sweep.directory / "sweep.png"
    try:
        plot_runs([point.directory for point in sweep.points if point.is_done], picture)
    except (ConfigError, OSError) as error:
        _say(f"{picture.name}: not written: {error}")
    else:
        print(f"wrote {picture}")


def summarize_sweep(sweep: Sweep) -> list[dict[str, Any]]:
    """Return a row for each combination of values, the one with the highest return first.

    The interquartile mean and its 95 % bootstrap interval are over seeds (Agarwal et al. 2021,
    arXiv 2108.13264); they are None without any return, and the interval is None below three seeds.
    """
    import numpy as np

    from sebulba.evaluation.statistics import MIN_VALUES, bootstrap_interval, interquartile_mean

    groups: dict[str, list[Point]] = {}
    for point in sweep.points:
        groups.setdefault(repr(point.settings), []).append(point)
    rows = []
    for points in groups.values():
        summaries = [point.summary for point in points if point.is_done]
        finals = [summary.get("final_episode_return_mean") for summary in summaries]
        returns = np.array([each for each in finals if each is not None], np.float64)
        has_interval = len(returns) >= MIN_VALUES
        low, high = bootstrap_interval(returns, seed=0) if has_interval else (None, None)
        settings = {flag.removeprefix("--"): text for flag, text in points[0].settings.items()}
        row: dict[str, Any] = {
            "settings": settings,
            "seeds": [point.seed for point in points],
            "done": len(summaries),
            "returns": returns.tolist(),
            "iqm": float(interquartile_mean(returns)) if len(returns) else None,
            "iqm_low": low,
            "iqm_high": high,
            "env_steps": [summary.get("env_steps") for summary in summaries],
            "directories": [point.directory.name for point in points],
        }
        rows.append(row)
    # None comes last.
    return sorted(rows, key=lambda row: (row["iqm"] is None, -(row["iqm"] or 0.0)))


def _show(sweep: Sweep, rows: list[dict[str, Any]]) -> None:
    import rich.box
    import rich.console
    import rich.table

    table = rich.table.Table(
        title=str(sweep.directory),
        title_justify="left",
        box=rich.box.SIMPLE,
        padding=(0, 1, 0, 0),
        show_edge=False,
    )
    flags = list(rows[0]["settings"])
    keys = [flag.rpartition(".")[2].removeprefix("--") for flag in flags]
    for flag, key in zip(flags, keys, strict=True):
        # The section says nothing if no other column has the same key.
        table.add_column(key if keys.count(key) == 1 else flag, overflow="fold")
    for column in ("seeds\ndone", "return:\nIQM [95 %]", "minimum,\nmaximum", "mean\nenv steps"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        returns = row["returns"]
        low, high, env_steps = row["iqm_low"], row["iqm_high"], row["env_steps"]
        interval = "" if low is None else f" [{_number(low)}, {_number(high)}]"
        table.add_row(
            *row["settings"].values(),
            f"{row['done']} of {len(row['seeds'])}",
            f"{_number(row['iqm'])}{interval}",
            f"{_number(min(returns))}, {_number(max(returns))}" if returns else _number(None),
            f"{statistics.fmean(env_steps):,.0f}" if env_steps else _number(None),
        )
    # A pipe has no width, and rich would wrap at 80 columns.
    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    rich.console.Console(width=width, highlight=False, markup=False).print(table)


def _number(value: float | None) -> str:
    """Format a number with four significant digits, or all digits before the point."""
    if value is None:
        return "–"
    return f"{value:,.1f}" if abs(value) >= 1000 else f"{value:.4g}"


if __name__ == "__main__":
    run_command(main)
