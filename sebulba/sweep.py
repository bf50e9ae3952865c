"""Train with several settings and seeds: `python -m sebulba.sweep CONFIG --FLAG A,B --seeds 0..2`.

One process for each run; the results are compared in a table and a plot. Imports no jax before the
results are read.
"""

import statistics
import sys
from collections.abc import Sequence
from typing import Any

from sebulba.config import flags
from sebulba.errors import ConfigError
from sebulba.process import program, run_command
from sebulba.processes.command_line import RAY_HELP
from sebulba.processes.grid import (
    Point,
    Sweep,
    format_number,
    parse_sweep,
    print_table,
    run_sweep,
    say,
    with_interval,
)

_USAGE = f"usage: {program('sweep')} CONFIG [--section.field VALUE,VALUE ...] [--seeds 0..2]"
_DESCRIPTION = f"""\
Trains a config with every combination of the values that flags list, each with every seed. Prints
the interquartile mean of the final returns over seeds with its 95 % bootstrap interval, and writes
sweep.json and, with the extra `plot`, sweep.png. Start the same command again to resume.

--section.field A,B   values of a setting; commas inside of brackets or quotes separate none
--seeds 0..2          seeds of each combination, or a list: 0,3,7; default: the config's seed
--run-dir DIRECTORY   holds a directory for each run; default: runs/sweep-<config>
--jobs N              number of runs at a time; default: 1, with --ray no limit
--list                print the runs with their numbers, and train nothing
{RAY_HELP}

As a task of a Slurm array, trains the run with the number of the task; the last task that ends
writes the results."""


def main() -> None:
    """Parse the command line, train, report, and exit with the first exit code other than 0."""
    argv = sys.argv[1:]
    if any(argument in ("-h", "--help") for argument in argv):
        config = [argument for argument in argv[:1] if not argument.startswith("-")]
        flags.parse([*config, "--help"], program("sweep"), _DESCRIPTION)
    sys.exit(sweep(argv))


def sweep(argv: Sequence[str]) -> int:
    """Train the runs of a command line, report their results, and return the exit code."""
    return run_sweep(argv, parse=parse_sweep, report=report_sweep, usage=_USAGE)


def report_sweep(sweep: Sweep) -> None:
    """Print the table of a sweep, and write `sweep.json` and `sweep.png`.

    The return of a run is the mean over its last `run.return_window` episodes.
    """
    # Importing numpy and matplotlib takes a second.
    from sebulba.figures.drawing import plot_runs
    from sebulba.storage.metrics.files import write_json

    rows = summarize_sweep(sweep)
    write_json(sweep.directory / "sweep.json", rows)
    _show(sweep, rows)
    picture = sweep.directory / "sweep.png"
    try:
        plot_runs([point.directory for point in sweep.points if point.is_done], picture)
    except (ConfigError, OSError) as error:
        say(f"{picture.name}: not written: {error}")
    else:
        print(f"wrote {picture}")


def summarize_sweep(sweep: Sweep) -> list[dict[str, Any]]:
    """Return a row for each combination of values, the one with the highest return first.

    The interquartile mean and its 95 % bootstrap interval are over seeds (Agarwal et al. 2021,
    arXiv 2108.13264); they are None without any return, and the interval is None below three seeds.
    """
    from sebulba.evaluation.statistics import interquartile_mean_of_seeds

    groups: dict[str, list[Point]] = {}
    for point in sweep.points:
        groups.setdefault(repr(point.settings), []).append(point)
    rows = []
    for points in groups.values():
        summaries = [point.summary for point in points if point.is_done]
        finals = [summary.get("final_episode_return_mean") for summary in summaries]
        returns = [each for each in finals if each is not None]
        iqm, low, high = interquartile_mean_of_seeds(returns)
        settings = {flag.removeprefix("--"): text for flag, text in points[0].settings.items()}
        row: dict[str, Any] = {
            "settings": settings,
            "seeds": [point.seed for point in points],
            "done": len(summaries),
            "returns": returns,
            "iqm": iqm,
            "iqm_low": low,
            "iqm_high": high,
            "env_steps": [summary.get("env_steps") for summary in summaries],
            "directories": [point.directory.name for point in points],
        }
        rows.append(row)
    # None comes last.
    return sorted(rows, key=lambda row: (row["iqm"] is None, -(row["iqm"] or 0.0)))


def _show(sweep: Sweep, rows: list[dict[str, Any]]) -> None:
    columns = ("seeds\ndone", "return:\nIQM [95 %]", "minimum,\nmaximum", "mean\nenv steps")
    cells = []
    for row in rows:
        returns, env_steps = row["returns"], row["env_steps"]
        own = (
            f"{row['done']} of {len(row['seeds'])}",
            with_interval(row["iqm"], row["iqm_low"], row["iqm_high"]),
            ", ".join(map(format_number, (min(returns), max(returns)) if returns else (None,))),
            f"{statistics.fmean(env_steps):,.0f}" if env_steps else format_number(None),
        )
        cells.append((row["settings"], own))
    print_table(str(sweep.directory), columns, cells)


if __name__ == "__main__":
    run_command(main)
