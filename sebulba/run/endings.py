"""How a run ends: its exit code, its summary, and its last words."""

import multiprocessing
import os
import pathlib
import shlex
import sys
from typing import Any, NoReturn

import jax
import numpy as np

from sebulba.envs.base import EnvironmentTimeout
from sebulba.exit_codes import (
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_NON_FINITE,
    EXIT_SIGNAL_BASE,
    EXIT_STUCK,
)
from sebulba.learning.learner import Learner
from sebulba.learning.non_finite import NonFiniteError
from sebulba.ring.timing import describe_bottleneck
from sebulba.ring.watchdog import WatchdogError
from sebulba.run.assembly import Ring
from sebulba.run.supervision import StuckError
from sebulba.storage.checkpoints.manifest import crc32_of, flatten
from sebulba.storage.checkpoints.restore import steps_in
from sebulba.storage.run_dir import CHECKPOINTS, directory_of_host, resume_command


def cause_of(error: BaseException) -> BaseException:
    """Returns what a run was stopped for, where threads that did not end hide it."""
    if isinstance(error, StuckError) and error.__context__ is not None:
        return error.__context__
    return error


def exit_code_of(error: BaseException | None, signal_number: int | None) -> int:
    """Returns the exit code of a run that ended with an error, with a signal, or by itself."""
    cause = None if error is None else cause_of(error)
    if signal_number is not None and (cause is None or isinstance(cause, StuckError)):
        return EXIT_SIGNAL_BASE + signal_number
    if cause is None:
        return EXIT_DONE
    if isinstance(cause, NonFiniteError):
        return EXIT_NON_FINITE
    if isinstance(cause, (StuckError, WatchdogError, EnvironmentTimeout)):
        return EXIT_STUCK
    return EXIT_FAILED


def describe_failure(error: BaseException, path: pathlib.Path) -> str:
    """Returns the last line on stderr of a run that failed: what, where, and what is left."""
    cause = cause_of(error)
    what = str(cause).strip().splitlines() or [""]
    # The runner's note is the last; JAX adds others before it.
    notes = getattr(cause, "__notes__", [])
    where = f" – {notes[-1]}" if notes else "."
    parts = [f"sebulba: {type(cause).__name__}: {what[0]}{where}"]
    if cause is not error:
        parts.append(f"After that {error}.")
    if isinstance(cause, NonFiniteError):
        rerun = f"python -m sebulba.rerun {shlex.quote(str(path))}"
        parts.append(f"To take that update alone again: {rerun}.")
    return " ".join([*parts, f"Results so far: {path}.", describe_checkpoint(path)])


def describe_loss(path: pathlib.Path) -> str:
    """Returns the last line on stderr of a host that is alone all of a sudden."""
    return (
        f"sebulba: host {jax.process_index()} of {jax.process_count()} lost the others: one of them"
        " is dead, stuck or out of reach, as its own log may say."
        f" Results so far: {path}. {describe_checkpoint(path)}"
    )


def describe_checkpoint(path: pathlib.Path) -> str:
    """Returns which checkpoint is the last one, and the command that goes on from it."""
    steps = steps_in(directory_of_host(path) / CHECKPOINTS)
    if not steps:
        return "There is no checkpoint."
    return f"The last checkpoint is of cycle {steps[-1]}; to go on from it: {resume_command(path)}"


def summarize(ring: Ring, *, status: str, resume_command: str | None) -> dict[str, Any]:
    """Returns what `summary.json` holds."""
    progress = ring.progress
    return {
        "status": status,
        "env_steps": progress.env_steps,
        "updates": progress.updates,
        "non_finite_updates": ring.learner.num_non_finite_updates,
        "learner_cycles": ring.learner.num_cycles,
        "wall_time_s": progress.wall_time_s,
        "startup_s": progress.startup_s,
        "steps_per_second": progress.steps_per_second,
        "steps_per_second_counts": "env steps learned from, start-up and compilation excluded",
        "episodes": progress.window.num_episodes,
        "episodes_cut": progress.episodes_cut,
        "env_restarts": progress.env_restarts,
        "best_episode_return_mean": progress.window.best_return_mean,
        "final_episode_return_mean": progress.window.return_mean,
        "episode_return_last": progress.window.last_return,
        "time_shares": progress.time_shares.shares(),
        "bound_by": describe_bottleneck(progress.time_shares.shares()),
        "ledger": ring.ledger.balance(),
        "networks_crc32": networks_crc32(ring.learner),
        "resume_command": resume_command,
    }


def networks_crc32(learner: Learner) -> str | None:
    """Returns the CRC32 of the learner's networks, all leaves in order; None within a cycle."""
    if not learner.is_between_cycles:
        return None
    leaves = flatten(learner.state.networks).values()
    return crc32_of(b"".join(np.asarray(leaf).tobytes() for leaf in leaves))


def describe_summary(summary: dict[str, Any], path: pathlib.Path) -> str:
    """Returns the run's last line on the console."""

    def number(value: float | None, digits: int = 0) -> str:
        return "unknown" if value is None else f"{value:,.{digits}f}"

    return (
        f"{summary['status']}: {summary['env_steps']:,} env steps,"
        f" {summary['updates']:,} updates in {summary['wall_time_s']:.1f} s;"
        f" {number(summary['steps_per_second'])} env steps/s (start-up and compilation,"
        f" {number(summary['startup_s'], 1)} s, excluded);"
        f" return {number(summary['final_episode_return_mean'], 1)},"
        f" best {number(summary['best_episode_return_mean'], 1)}; {path}"
    )


def end_process(code: int) -> NoReturn:
    """Ends the process without waiting for threads that cannot be joined.

    The interpreter would wait for none of them either, but take away what they stand on, and die of
    it. Processes of environments are ended too: one that hangs would stay.
    """
    for child in multiprocessing.active_children():
        child.kill()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)
