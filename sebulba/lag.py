"""Measure what a policy lag costs: `python -m sebulba.lag CONFIG --lags 0,1,4,16 --seeds 0..4`.

A sweep over `learner.policy_lag`. Since the lag is exact, the returns are the same whenever they
are measured again. Imports no jax.
"""

import collections
import math
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sebulba.config import flags
from sebulba.config.loading import load_config, split_arguments
from sebulba.errors import ConfigError
from sebulba.process import program, run_command
from sebulba.processes.command_line import RAY_HELP, take_flag
from sebulba.processes.grid import Point, Sweep, parse_sweep, print_table, run_sweep, with_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_USAGE = f"usage: {program('lag')} CONFIG [--lags 0,1,2,4] [--seeds 0..4] [--section.field VALUE]"
_LAGS = "0,1,2,4,8,16,32"
_DESCRIPTION = f"""\
Trains a config with every policy lag, each with every seed. Prints the interquartile mean over
seeds with its 95 % bootstrap interval: of the returns at equal numbers of env steps, and of the env
steps to the goal, which is run.stop_at_return; no run stops there. Writes lag.json, with numbers
that repeat; lag_speed.json, with those that depend on the machine; and, with the extra `plot`,
lag.png. Start the same command again to resume.

--lags 0,1,2          exact policy lags, in learner cycles; default: {_LAGS}
--section.field A,B   values of a setting, each with every lag
--seeds 0..4          seeds of each run, or a list: 0,3,7; default: the config's seed
--run-dir DIRECTORY   holds a directory for each run; default: runs/lag-<config>
--jobs N              number of runs at a time; default: 1, with --ray no limit
--list                print the runs with their numbers, and train nothing
{RAY_HELP}

An agent that does not correct for a lag needs --learner.allow-uncorrected-lag true. With JAX
environments, --run.mode auto acts and learns in one program."""
_LAG_FLAG = "--learner.policy-lag"
_GOAL_FLAG = "--run.stop-at-return"
_FRACTIONS = (0.25, 0.5, 1.0)  # of run.total_env_steps, at which returns are compared


def main() -> None:
    """Parse the command line, train, report, and exit with the first exit code other than 0."""
    argv = sys.argv[1:]
    if any(argument in ("-h", "--help") for argument in argv):
        config = [argument for argument in argv[:1] if not argument.startswith("-")]
        flags.parse([*config, "--help"], program("lag"), _DESCRIPTION)
    sys.exit(
        run_sweep(
            argv,
            parse=parse_lags,
            report=lambda sweep: report_lags(sweep, goal=_goal_of(argv)),
            usage=_USAGE,
        )
    )


def parse_lags(argv: Sequence[str]) -> Sweep:
    """Return the sweep that a command line describes.

    Raises:
        ConfigError: a flag or the config of a run is wrong.
    """
    lags, rest = take_flag(argv, "--lags")
    own_lag, rest = take_flag(rest, _LAG_FLAG)
    if own_lag is not None:
        raise ConfigError(f"{_LAG_FLAG}: cannot be combined with this command. Set --lags")
    lags = _LAGS if lags is None else lags
    for text in lags.split(","):
        if not text.strip().isdecimal():
            raise ConfigError(f"--lags: expected integers as 0,1,4, got {lags!r}")
    _, rest = take_flag(rest, _GOAL_FLAG)
    sweep = parse_sweep([*rest, f"{_LAG_FLAG}={lags}", f"{_GOAL_FLAG}=null"], name="lag")
    _goal_of(argv)
    return sweep


def _goal_of(argv: Sequence[str]) -> float | None:
    """Return the mean return that counts as the goal: the flag's, or the config's."""
    text, rest = take_flag(argv, _GOAL_FLAG)
    _, rest = take_flag(rest, "--lags")
    (path,), _ = split_arguments([each for each in rest if each not in ("--list", "--ray")])
    return load_config(path, [] if text is None else [f"{_GOAL_FLAG}={text}"]).run.stop_at_return


def report_lags(sweep: Sweep, *, goal: float | None) -> None:
    """Print the tables of a sweep over lags, and write `lag.json`, `lag_speed.json` and `lag.png`.

    Args:
        sweep: the runs, some of which are done.
        goal: the mean return whose env steps are counted; None: none.
    """
    # Importing numpy and matplotlib takes a second.
    from sebulba.figures.drawing import check_matplotlib, save
    from sebulba.storage.metrics.files import write_json

    rows = summarize_lags(sweep, goal=goal)
    speeds = summarize_speed(sweep)
    write_json(sweep.directory / "lag.json", rows)
    write_json(sweep.directory / "lag_speed.json", speeds)
    _show(sweep, rows, speeds)
    picture = sweep.directory / "lag.png"
    try:
        check_matplotlib()
        save(draw_lags(_series(rows)), picture)
    except (ConfigError, OSError) as error:
        print(f"{picture.name}: not written: {error}", file=sys.stderr)
    else:
        print(f"wrote {picture}")


def summarize_lags(sweep: Sweep, *, goal: float | None) -> list[dict[str, Any]]:
    """Return a row for each lag and combination of other settings, in the order of the command.

    A return is the logged mean over the last `run.return_window` episodes, interpolated between two
    rows of metrics. A run that does not reach the goal counts with all its env steps there, so that
    the mean is a lower bound.
    """
    import numpy as np

    from sebulba.evaluation.statistics import interquartile_mean_of_seeds
    from sebulba.figures.curves import curve
    from sebulba.storage.run_files import read_run

    rows = []
    for (lag, settings), points in _groups(sweep).items():
        done = [point for point in points if point.is_done]
        total = load_config(points[0].argv[0], points[0].argv[1:]).run.total_env_steps
        curves = [
            curve(read_run(each.directory), "env_steps", "episode_return_mean") for each in done
        ]
        returns = []
        for env_steps in (math.ceil(fraction * total) for fraction in _FRACTIONS):
            known = [(xs, ys) for xs, ys in curves if len(xs) and xs[0] <= env_steps]
            values = [float(np.interp(env_steps, xs, ys)) for xs, ys in known]
            iqm, low, high = interquartile_mean_of_seeds(values)
            returns.append(
                {"env_steps": env_steps, "values": values, "iqm": iqm, "low": low, "high": high}
            )
        row = {"lag": lag, "settings": dict(settings), "seeds": [each.seed for each in points]}
        row |= {"done": len(done), "returns": returns, "goal": None}
        if goal is not None:
            firsts = [xs[ys >= goal][:1] for xs, ys in curves]
            steps = [float(first[0]) if len(first) else float(total) for first in firsts]
            iqm, low, high = interquartile_mean_of_seeds(steps)
            row["goal"] = {
                "return": goal,
                "reached": sum(len(first) for first in firsts),
                "env_steps": steps,
                "iqm": iqm,
                "low": low,
                "high": high,
            }
        rows.append(row)
    return rows


def summarize_speed(sweep: Sweep) -> list[dict[str, Any]]:
    """Return the measured speed of the runs, with a row for each row of `summarize_lags`."""
    return [
        {
            "lag": lag,
            "settings": dict(settings),
            "steps_per_second": [each.summary.get("steps_per_second") for each in done],
            "wall_time_s": [each.summary.get("wall_time_s") for each in done],
        }
        for (lag, settings), points in _groups(sweep).items()
        for done in [[each for each in points if each.is_done]]
    ]


_Settings = tuple[tuple[str, str], ...]


def _groups(sweep: Sweep) -> dict[tuple[int, _Settings], list[Point]]:
    """Return the runs by lag and other settings."""
    groups: dict[tuple[int, _Settings], list[Point]] = collections.defaultdict(list)
    for point in sweep.points:
        given = dict(argument.partition("=")[::2] for argument in point.argv[1:])
        others = {
            flag.removeprefix("--"): text
            for flag, text in point.settings.items()
            if flag != _LAG_FLAG
        }
        groups[int(given[_LAG_FLAG]), tuple(others.items())].append(point)
    return dict(groups)


def _show(sweep: Sweep, rows: list[dict[str, Any]], speeds: list[dict[str, Any]]) -> None:
    columns = ["seeds\ndone"]
    columns += [f"return at\n{each['env_steps']:,}" for each in rows[0]["returns"]]
    has_goal = rows[0]["goal"] is not None
    if has_goal:
        columns.append(f"env steps\nto {rows[0]['goal']['return']:g}")
    cells = []
    for row in rows:
        own = [f"{row['done']} of {len(row['seeds'])}"]
        own += [with_interval(each["iqm"], each["low"], each["high"]) for each in row["returns"]]
        if has_goal:
            own.append(_describe_goal(row["goal"]))
        cells.append(({"lag": str(row["lag"]), **row["settings"]}, own))
    print_table(f"{sweep.directory}: interquartile means [95 %]", columns, cells)
    measured = [
        (
            {"lag": str(row["lag"]), **row["settings"]},
            [f"{sum(rates) / len(rates):,.0f}" if rates else "–"],
        )
        for row in speeds
        for rates in [[rate for rate in row["steps_per_second"] if rate is not None]]
    ]
    print_table("measured here", ["env steps\nper second"], measured)


def _describe_goal(goal: Mapping[str, Any]) -> str:
    if not goal["reached"]:
        return "not reached"
    text = with_interval(goal["iqm"], goal["low"], goal["high"])
    if goal["reached"] == len(goal["env_steps"]):
        return text
    return f"≥ {text}, reached by {goal['reached']} of {len(goal['env_steps'])}"


def _series(rows: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of each combination of the other settings, by its name."""
    series: dict[str, list[dict[str, Any]]] = collections.defaultdict(list)
    for row in rows:
        words = [f"{key.rpartition('.')[2]}={text}" for key, text in row["settings"].items()]
        series[" ".join(words)].append(row)
    return dict(series)


def draw_lags(series: Mapping[str, Sequence[dict[str, Any]]], *, title: str = "") -> "Figure":
    """Draw final returns, and env steps to the goal if there is one, over the policy lag.

    Args:
        series: rows of `summarize_lags` by the name of their line.
        title: of the figure.
    """
    from matplotlib.figure import Figure

    from sebulba.figures.axes import tick_label
    from sebulba.figures.drawing import COLOURS

    lags = sorted({row["lag"] for rows in series.values() for row in rows})
    has_goal = any(_goals(rows) for rows in series.values())
    figure = Figure(figsize=(9.2 if has_goal else 4.6, 3.4), layout="constrained")
    panels: list[Axes] = list(figure.subplots(1, 1 + has_goal, squeeze=False).flat)
    for number, (name, rows) in enumerate(series.items()):
        # Lines side by side: intervals on top of each other could not be told apart.
        shift = 0.5 * ((number + 0.5) / len(series) - 0.5)
        for axes, values in zip(panels, [_finals(rows), _goals(rows)], strict=False):
            xs = [lags.index(lag) + shift for lag, *_ in values]
            ys = [value for _, value, _, _ in values]
            colour = COLOURS[number % len(COLOURS)]
            axes.plot(xs, ys, label=name, color=colour, linewidth=1.6, marker="o", markersize=4)
            for x, (_, _, low, high) in zip(xs, values, strict=True):
                if low is not None and high is not None:
                    axes.plot([x, x], [low, high], color=colour, linewidth=1.0)
    labels = ("mean return at the end", "env steps to the goal")
    for axes, label in zip(panels, labels, strict=False):
        axes.set_xticks(range(len(lags)), [str(lag) for lag in lags])
        axes.set_xlabel("policy lag [learner cycles]")
        axes.set_ylabel(label)
        axes.grid(alpha=0.25, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    if has_goal:
        axes = panels[1]
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(lambda value, _: tick_label(value, list(axes.get_yticks())))
    if any(series):
        panels[0].legend(frameon=False, fontsize=8)
    if title:
        figure.suptitle(title, fontsize=10)
    return figure


_Value = tuple[int, float, float | None, float | None]
"""A lag, an interquartile mean, and its interval."""


def _finals(rows: Sequence[dict[str, Any]]) -> list[_Value]:
    lasts = [(row["lag"], row["returns"][-1]) for row in rows]
    return [(lag, each["iqm"], each["low"], each["high"]) for lag, each in lasts if each["values"]]


def _goals(rows: Sequence[dict[str, Any]]) -> list[_Value]:
    goals = [(row["lag"], row["goal"]) for row in rows if row["goal"] is not None]
    return [(lag, each["iqm"], each["low"], each["high"]) for lag, each in goals if each["reached"]]


if __name__ == "__main__":
    run_command(main)
