"""The results of a sweep: a table of its settings, a plot, and `sweep.json`."""

import sys
from typing import Any

import numpy as np
import rich.console
import rich.table

from sebulba.errors import ConfigError
from sebulba.evaluation.statistics import MIN_VALUES, bootstrap_interval, interquartile_mean
from sebulba.figures import plot_runs
from sebulba.storage.metrics.files import write_json
from sebulba.tools.sweep.points import Point, Sweep
from sebulba.tools.sweep.running import is_done, say, summary_of

_PIPE_WIDTH = 120


def report_sweep(sweep: Sweep) -> None:
    """Print the table of a sweep, and write `sweep.json` and `sweep.png`.

    The return of a run is the mean over its last `run.return_window` episodes.
    """
    rows = summarize_sweep(sweep)
    write_json(sweep.directory / "sweep.json", rows)
    _show(sweep, rows)
    picture = sweep.directory / "sweep.png"
    try:
        plot_runs([point.directory for point in sweep.points if is_done(point)], picture)
    except (ConfigError, OSError) as error:
        say(f"{picture.name}: not written: {error}")
    else:
        print(f"wrote {picture}")


def summarize_sweep(sweep: Sweep) -> list[dict[str, Any]]:
    """Return a row for each combination of values, the one with the highest return first.

    The interquartile mean and its 95 % bootstrap interval are over seeds (Agarwal et al. 2021,
    arXiv 2108.13264); they are None without any return, and the interval is None below three seeds.
    """
    groups: dict[str, list[Point]] = {}
    for point in sweep.points:
        groups.setdefault(repr(point.settings), []).append(point)
    rows = [_summarize(points) for points in groups.values()]
    # None comes last.
    return sorted(rows, key=lambda row: (row["iqm"] is None, -(row["iqm"] or 0.0)))


def _summarize(points: list[Point]) -> dict[str, Any]:
    summaries = [summary_of(point) for point in points if is_done(point)]
    finals = [summary.get("final_episode_return_mean") for summary in summaries]
    returns = np.array([each for each in finals if each is not None], np.float64)
    has_interval = len(returns) >= MIN_VALUES
    low, high = bootstrap_interval(returns, seed=0) if has_interval else (None, None)
    return {
        "settings": {flag.removeprefix("--"): text for flag, text in points[0].settings.items()},
        "seeds": [point.seed for point in points],
        "done": len(summaries),
        "returns": returns.tolist(),
        "iqm": float(interquartile_mean(returns)) if len(returns) else None,
        "iqm_low": low,
        "iqm_high": high,
        "env_steps": [summary.get("env_steps") for summary in summaries],
        "directories": [point.directory.name for point in points],
    }


def _show(sweep: Sweep, rows: list[dict[str, Any]]) -> None:
    flags = list(rows[0]["settings"])
    table = rich.table.Table(title=str(sweep.directory))
    columns = [*flags, "seeds done", "return: IQM [95 %]", "minimum, maximum", "mean env steps"]
    for position, column in enumerate(columns):
        table.add_column(column, justify="left" if position < len(flags) else "right")
    for row in rows:
        returns = row["returns"]
        interval = "" if row["iqm_low"] is None else _interval(row["iqm_low"], row["iqm_high"])
        table.add_row(
            *row["settings"].values(),
            f"{row['done']} of {len(row['seeds'])}",
            f"{_number(row['iqm'])}{interval}",
            f"{_number(min(returns))}, {_number(max(returns))}" if returns else _number(None),
            _count(float(np.mean(row["env_steps"])) if row["env_steps"] else None),
        )
    # A pipe has no width, and rich would wrap at 80 columns.
    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    rich.console.Console(width=width, highlight=False, markup=False).print(table)


def _interval(low: float, high: float) -> str:
    return f" [{_number(low)}, {_number(high)}]"


def _count(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def _number(value: float | None) -> str:
    """Format a number with four significant digits, or all digits before the point."""
    if value is None:
        return "–"
    return f"{value:,.1f}" if abs(value) >= 1000 else f"{value:.4g}"
