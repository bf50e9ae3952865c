"""Train several runs as child processes, some at a time. Imports no jax."""

import collections
import contextlib
import dataclasses
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from sebulba.process import EXIT_SIGNAL_BASE
from sebulba.processes.children import Children, exit_code_of
from sebulba.processes.cores import on_cores_of_process

_POLL_S = 0.2
GPU_MEMORY = 0.75
"""JAX reserves this part of a GPU's memory at a process's start, so a second one would end."""
GPU_MEMORY_VARIABLES = (
    "XLA_PYTHON_CLIENT_MEM_FRACTION",
    "XLA_CLIENT_MEM_FRACTION",
    "XLA_PYTHON_CLIENT_PREALLOCATE",
)
"""Environment variables by which a user sets that part; the first one is set here."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """A run to train."""

    name: str  # in messages
    directory: str | os.PathLike[str]
    argv: tuple[str, ...]  # the command line of `sebulba.train`
    log: pathlib.Path | None = None  # gets stdout and stderr; None: they are this process's


def train_runs(
    runs: Sequence[TrainingRun],
    *,
    num_jobs: int = 1,
    on_start: Callable[[TrainingRun], None],
    on_end: Callable[[TrainingRun, int], None],
) -> int:
    """Train runs in their order, each in a process of its own, so that a crash ends one run only.

    The next run starts even if one fails. A signal ends the current runs, which save, and no other
    run starts. Each of the runs at a time has an equal part of the cores: XLA starts a thread for
    every core it may use, and those of several runs would wait for each other (docs/sweeps.md). The
    runs divide what JAX reserves of a GPU's memory, unless the user has set it.

    Args:
        runs: the runs.
        num_jobs: the number of runs at a time.
        on_start: called with each run before its process starts.
        on_end: called with each run that has ended, and its exit code.

    Returns:
        0 if all ended with 0, else the first other exit code; 128 + the number of a signal that
        prevented runs although none failed.
    """
    num_jobs = min(num_jobs, len(runs))
    waiting = collections.deque(runs)
    running: dict[int, tuple[TrainingRun, subprocess.Popen[bytes]]] = {}  # by their part of cores
    failures: list[int] = []
    variables: dict[str, str] = {}
    if num_jobs > 1 and not any(name in os.environ for name in GPU_MEMORY_VARIABLES):
        variables = {GPU_MEMORY_VARIABLES[0]: f"{GPU_MEMORY / num_jobs:.3f}"}
    with Children().forwarding_signals() as children:
        while running or (waiting and children.signal_number is None):
            free = [number for number in range(num_jobs) if number not in running]
            if free and waiting and children.signal_number is None:
                run = waiting.popleft()
                on_start(run)
                with (
                    contextlib.nullcontext() if run.log is None else open(run.log, "ab") as log,
                    on_cores_of_process(free[0], num_processes=num_jobs),
                ):
                    process = children.start(run.argv, variables=variables, output=log)
                    running[free[0]] = (run, process)
                continue
            time.sleep(_POLL_S)
            for number, (run, process) in list(running.items()):
                if process.poll() is not None:
                    code = exit_code_of(process.returncode)
                    failures += [code] if code else []
                    del running[number]
                    on_end(run, code)
    if not failures and waiting and children.signal_number is not None:
        return EXIT_SIGNAL_BASE + children.signal_number
    return failures[0] if failures else 0


def say(text: str) -> None:
    """Print a line of progress; results alone go to standard output."""
    print(text, file=sys.stderr, flush=True)
