"""Runs of every combination of settings and seeds, a process each. Imports no jax.

`sebulba.sweep` compares settings with it, and `sebulba.lag` policy lags.
"""

import collections
import dataclasses
import itertools
import json
import os
import pathlib
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sebulba.config import Config
from sebulba.config.loading import load_config, split_arguments
from sebulba.config.naming import expanded
from sebulba.config.schema import key_types
from sebulba.config.validation import value_of
from sebulba.errors import ConfigError, refuse
from sebulba.process import EXIT_DONE
from sebulba.processes.command_line import (
    check_holds_no_run,
    take_count,
    take_ray,
    take_seeds,
)
from sebulba.processes.ray_cluster import RayShare
from sebulba.processes.ray_runs import train_runs_on_ray
from sebulba.processes.run_holder import with_resume
from sebulba.processes.runs import TrainingRun, say, train_runs
from sebulba.storage.names import CONFIG, SUMMARY

_TASK = "SLURM_ARRAY_TASK_ID"
_MAX_RUNS = 10_000
_PIPE_WIDTH = 120


def run_sweep(
    argv: Sequence[str],
    *,
    parse: Callable[[Sequence[str]], "Sweep"],
    report: Callable[["Sweep"], None],
    usage: str,
) -> int:
    """Train the runs that `parse` makes of a command line without `--list`.

    Args:
        argv: the command line.
        parse: may raise a `ConfigError`.
        report: is called once all runs have ended, if one of them is done.
        usage: is printed with an error.

    Returns:
        The exit code.
    """
    try:
        parsed = parse([argument for argument in argv if argument != "--list"])
        points, task = parsed.points, os.environ.get(_TASK)
        if task is not None:
            if not (task.isdecimal() and int(task) < len(points)):
                raise ConfigError(
                    f"{_TASK}: expected less than the {len(points)} runs of the sweep, got {task}."
                    f" Set sbatch --array=0-{len(points) - 1}"
                )
            points = (points[int(task)],)
    except ConfigError as error:
        return refuse(error, usage=usage)
    if "--list" in argv:
        for number, point in enumerate(parsed.points):
            print(f"{number}  {point.label}{'  done' if point.is_done else ''}")
        return EXIT_DONE
    try:
        code = train_points(parsed, points)
    except ConfigError as error:
        return refuse(error)
    num_done = sum(point.is_done for point in parsed.points)
    if len(points) < len(parsed.points) and num_done < len(parsed.points):
        say(f"{num_done} of {len(parsed.points)} runs are done; the last one writes the results")
    elif num_done:
        report(parsed)
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
            summary = json.loads((self.directory / SUMMARY).read_text(encoding="utf-8"))
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
    num_jobs: int | None  # runs at a time; None: 1 here, and as many as there is room for on Ray
    share: RayShare | None = None  # what each run asks of Ray; None: this machine trains them


def parse_sweep(argv: Sequence[str], *, name: str = "sweep") -> Sweep:
    """Return the sweep that a command line describes.

    Every flag may have several values, separated by commas: `--agent.learning-rate 1e-3,3e-4`.

    Args:
        argv: the command line.
        name: of the command, which is part of the directory's default.

    Raises:
        ConfigError: a flag or the config of a run is wrong.
    """
    seeds, argv = take_seeds(argv)
    num_jobs, argv = take_count(argv, "--jobs")
    share, argv = take_ray(argv)
    positionals, given = split_arguments(argv)
    if len(positionals) != 1:
        raise ConfigError(f"expected one config, got {' '.join(positionals) or 'none'}")
    (path,) = positionals
    if "--resume" in given:
        raise ConfigError("--resume: a sweep resumes by itself. Start the same command again")
    run_dir = given.pop("--run-dir", f"runs/{name}-{pathlib.Path(path).stem}")
    directory = expanded(run_dir)
    if share is not None:  # Processes of Ray start in other directories.
        directory = directory.absolute()
        path = os.path.abspath(path) if os.path.isfile(path) else path
    check_holds_no_run(directory)
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
            if (own / CONFIG).is_file():
                _check_earlier_run(own, load_config(path, [*arguments, *last]))
            argv_of_run = (path, *arguments, *last)
            points.append(Point(settings=settings, seed=seed, directory=own, argv=argv_of_run))
    if len(points) > _MAX_RUNS:
        raise ConfigError(f"expected at most {_MAX_RUNS:,} runs, got {len(points):,}")
    for label, count in collections.Counter(point.label for point in points).items():
        if count > 1:
            raise ConfigError(f"expected every combination of values once, got {label} twice")
    return Sweep(directory=directory, points=tuple(points), num_jobs=num_jobs, share=share)


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
    earlier = load_config(str(directory / CONFIG))
    keys = {**key_types(type(earlier.agent)), **key_types(type(config.agent))}
    # `init_from` is stored as the exact checkpoint.
    ignored = ("run_dir", "resume", "init_from", "distributed.")
    missing = object()

    def value(config: Config, key: str) -> Any:
        try:
            found = value_of(config, key)
        except AttributeError:  # another agent's
            return missing
        if key == "env.options" and isinstance(opponent := found.get("opponent"), str):
            # An opponent that is a run is stored as its exact checkpoint, too.
            run_dir = pathlib.Path(opponent.partition("@")[0]).expanduser().absolute()
            found = {**found, "opponent": run_dir}
        return found

    def differing_keys(config: Config) -> list[str]:
        compared = (key for key in keys if not key.startswith(ignored))
        return [key for key in compared if value(earlier, key) != value(config, key)]

    differing = differing_keys(config)
    if differing and config.open_defaults:
        from sebulba.envs.task_defaults import with_task_defaults  # imports jax

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

    Raises:
        ConfigError: Ray is asked for and cannot train them, or the directory cannot be made.
    """
    left = {point.label: point for point in points if not point.is_done}
    if len(left) < len(points):
        say(f"{len(points) - len(left)} of {len(points)} runs are done already")
    logs = sweep.directory / "logs"
    try:
        logs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"run_dir: cannot create {logs}: {error}") from error
    runs = []
    for label, point in left.items():
        argv = tuple(with_resume(point.argv, point.directory))
        log = logs / f"{label}.log"
        runs.append(TrainingRun(name=label, directory=point.directory, argv=argv, log=log))
    numbers = itertools.count(1)

    def on_start(run: TrainingRun, machine: str | None = None) -> None:
        where = "" if machine is None else f" on {machine}"
        say(f"[{next(numbers)}/{len(runs)}] {run.name}{where}")

    def on_end(run: TrainingRun, code: int) -> None:
        summary = left[run.name].summary
        final = summary.get("final_episode_return_mean")
        if code:
            say(f"{run.name} ended with exit code {code}: {run.log}")
        else:
            shown = "no mean return" if final is None else f"mean return {final:,.2f}"
            say(f"{run.name} done: {shown} after {summary.get('env_steps', 0):,} env steps")

    if sweep.share is None:
        num_jobs = sweep.num_jobs or 1
        return train_runs(runs, num_jobs=num_jobs, on_start=on_start, on_end=on_end)
    return train_runs_on_ray(
        runs,
        share=sweep.share,
        directory=sweep.directory,
        num_jobs=sweep.num_jobs,
        on_start=on_start,
        on_end=on_end,
    )


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[tuple[Mapping[str, str], Sequence[str]]],
) -> None:
    """Print a table of runs to standard output.

    Args:
        title: the line above it.
        columns: names of the columns after those of the settings.
        rows: values of the settings by dotted key, the same keys in each row; and the other cells.
    """
    import rich.box
    import rich.console
    import rich.table

    table = rich.table.Table(
        title=title,
        title_justify="left",
        box=rich.box.SIMPLE,
        padding=(0, 1, 0, 0),
        show_edge=False,
    )
    flags = list(rows[0][0])
    keys = [flag.rpartition(".")[2].removeprefix("--") for flag in flags]
    for flag, key in zip(flags, keys, strict=True):
        # The section says nothing if no other column has the same key.
        table.add_column(key if keys.count(key) == 1 else flag, overflow="fold")
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for settings, cells in rows:
        table.add_row(*settings.values(), *cells)
    # A pipe has no width, and rich would wrap at 80 columns.
    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    rich.console.Console(width=width, highlight=False, markup=False).print(table)


def with_interval(value: float | None, low: float | None, high: float | None) -> str:
    """Format an interquartile mean with its interval, if it has one."""
    mean = format_number(value)
    return mean if low is None else f"{mean} [{format_number(low)}, {format_number(high)}]"


def format_number(value: float | None) -> str:
    """Format a number with four significant digits, or all digits before the point."""
    if value is None:
        return "–"
    return f"{value:,.1f}" if abs(value) >= 1000 else f"{value:.4g}"
