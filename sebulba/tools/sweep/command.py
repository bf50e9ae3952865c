"""The command `sebulba.sweep`, from its arguments to its exit code. Imports no jax at first."""

import os
import sys
from collections.abc import Mapping, Sequence

from sebulba.errors import ConfigError, escaped
from sebulba.exit_codes import EXIT_CONFIG
from sebulba.tools.sweep.points import Point, Sweep, parse_sweep
from sebulba.tools.sweep.running import is_done, run_points, say

_TASK = "SLURM_ARRAY_TASK_ID"


def sweep(argv: Sequence[str], *, usage: str) -> int:
    """Train the runs of a sweep, report their results, and return the exit code.

    Args:
        argv: the command line, without the name of the program.
        usage: begins the message about a wrong command line.
    """
    wants_list = "--list" in argv
    try:
        parsed = parse_sweep([argument for argument in argv if argument != "--list"])
        points = _points_of_task(parsed, os.environ)
    except ConfigError as error:
        print(f"{usage}\n{escaped(str(error))}", file=sys.stderr)
        return EXIT_CONFIG
    if wants_list:
        for number, point in enumerate(parsed.points):
            print(f"{number}  {point.label}{'  done' if is_done(point) else ''}")
        return 0
    code = run_points(parsed, points)
    num_done = sum(map(is_done, parsed.points))
    if len(points) < len(parsed.points) and num_done < len(parsed.points):
        say(f"{num_done} of {len(parsed.points)} runs are done; the last one writes the results")
    elif num_done:
        # Importing numpy and matplotlib takes a second.
        from sebulba.tools.sweep.results import report_sweep

        report_sweep(parsed)
    return code


def _points_of_task(parsed: Sweep, environment: Mapping[str, str]) -> Sequence[Point]:
    """Return the run of a task of a Slurm array; outside of one, all runs."""
    task = environment.get(_TASK)
    if task is None:
        return parsed.points
    if not (task.isdecimal() and int(task) < len(parsed.points)):
        raise ConfigError(
            f"{_TASK}: expected less than the {len(parsed.points)} runs of the sweep, got {task}."
            f" Set sbatch --array=0-{len(parsed.points) - 1}"
        )
    return [parsed.points[int(task)]]
