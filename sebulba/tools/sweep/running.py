"""Run the training processes of a sweep, several at a time. Imports no jax."""

import collections
import json
import pathlib
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from sebulba.process import EXIT_SIGNAL_BASE
from sebulba.processes.children import Children, exit_code_of
from sebulba.processes.cores import on_cores_of_process
from sebulba.tools.sweep.points import Point, Sweep

_POLL_S = 0.2


def is_done(point: Point) -> bool:
    """Return whether a run has reached its goal."""
    return summary_of(point).get("status") == "done"


def summary_of(point: Point) -> dict[str, Any]:
    """Return `summary.json` of a run; empty if it has not ended yet."""
    try:
        summary = json.loads((point.directory / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return summary if isinstance(summary, dict) else {}


def run_points(sweep: Sweep, points: Sequence[Point]) -> int:
    """Train the runs that are not done yet, and resume those that were interrupted.

    The next run starts even if one fails. A signal ends the current runs, which save, and no other
    run starts. Each of the runs at a time has an equal part of the cores: XLA starts a thread for
    every core it may use, and those of several runs would wait for each other (docs/sweeps.md).

    Returns:
        0 if all ended with 0, else the first other exit code; 128 + the number of a signal that
        prevented runs although none failed.
    """
    left = [point for point in points if not is_done(point)]
    if len(left) < len(points):
        say(f"{len(points) - len(left)} of {len(points)} runs are done already")
    codes: list[int] = []
    running: dict[int, tuple[Point, subprocess.Popen[bytes]]] = {}  # by their part of the cores
    num_jobs = min(sweep.num_jobs, len(left))
    (sweep.directory / "logs").mkdir(parents=True, exist_ok=True)
    waiting = collections.deque(left)
    with Children().forwarding_signals() as children:
        while running or (waiting and children.signal_number is None):
            free = [number for number in range(num_jobs) if number not in running]
            if free and waiting and children.signal_number is None:
                point = waiting.popleft()
                say(f"[{len(left) - len(waiting)}/{len(left)}] {point.label}")
                with on_cores_of_process(free[0], num_processes=num_jobs):
                    running[free[0]] = (point, _start(children, sweep, point))
                continue
            time.sleep(_POLL_S)
            for number, (point, process) in list(running.items()):
                if process.poll() is not None:
                    codes.append(exit_code_of(process.returncode))
                    say(f"{point.label} {_describe_end(sweep, point, codes[-1])}")
                    del running[number]
    failures = [code for code in codes if code]
    if not failures and waiting and children.signal_number is not None:
        return EXIT_SIGNAL_BASE + children.signal_number
    return failures[0] if failures else 0


def say(text: str) -> None:
    """Print a line of progress; results alone go to standard output."""
    print(text, file=sys.stderr, flush=True)


def _start(children: Children, sweep: Sweep, point: Point) -> subprocess.Popen[bytes]:
    checkpoints = point.directory / "checkpoints"
    has_learned = checkpoints.is_dir() and any(
        each.name.isdecimal() for each in checkpoints.iterdir()
    )
    resume = ["--resume=latest"] if has_learned else []
    with open(_log_of(sweep, point), "ab") as log:
        return children.start([*point.argv, *resume], output=log)


def _log_of(sweep: Sweep, point: Point) -> pathlib.Path:
    return sweep.directory / "logs" / f"{point.label}.log"


def _describe_end(sweep: Sweep, point: Point, code: int) -> str:
    if code:
        return f"ended with exit code {code}: {_log_of(sweep, point)}"
    summary = summary_of(point)
    final = summary.get("final_episode_return_mean")
    shown = "no mean return" if final is None else f"mean return {final:,.2f}"
    return f"done: {shown} after {summary.get('env_steps', 0):,} env steps"
