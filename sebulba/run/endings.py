"""What a run that has ended says: its exit code, its summary, and its last line."""

import multiprocessing
import pathlib
import shlex
import signal
from typing import Any, NoReturn

import jax
import numpy as np

from sebulba.envs.base import EnvironmentTimeout
from sebulba.errors import PLACE, describe_error, escaped
from sebulba.hosts.joining import newest_whole_step
from sebulba.learning.learner import Learner
from sebulba.learning.non_finite import NonFiniteError
from sebulba.process import (
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_NON_FINITE,
    EXIT_SIGNAL_BASE,
    EXIT_STUCK,
    EXIT_UNSAVED,
    end_at_once,
    program,
)
from sebulba.ring.run_end import RunEnd
from sebulba.ring.timing import describe_bottleneck
from sebulba.ring.watchdog import WatchdogError
from sebulba.run.assembly import Ring
from sebulba.run.supervision import StuckError
from sebulba.storage.checkpoints.manifest import crc32_of, flatten
from sebulba.storage.checkpoints.restore import CheckpointError, steps_in
from sebulba.storage.lock import GoneError
from sebulba.storage.run_dir import CHECKPOINTS, directory_of_host, resume_command
from sebulba.storage.shares import complete_steps, hosts_in, saved_by


def cause_of(error: BaseException) -> BaseException:
    """Return the error that stopped the run; a `StuckError` that followed from it hides it."""
    if isinstance(error, StuckError) and error.__context__ is not None:
        return error.__context__
    return error


def exit_code_of(run_end: RunEnd) -> int:
    """Return the exit code of a run that has ended by a failure, a signal or its goal."""
    cause = None if run_end.failure is None else cause_of(run_end.failure)
    if isinstance(cause, GoneError) or (cause is None and run_end.unsaved is not None):
        return EXIT_UNSAVED
    if run_end.is_interrupted and (cause is None or isinstance(cause, StuckError)):
        return EXIT_SIGNAL_BASE + (run_end.signal or run_end.received or 0)
    if cause is None:
        return EXIT_DONE
    if isinstance(cause, NonFiniteError):
        return EXIT_NON_FINITE
    if isinstance(cause, (StuckError, WatchdogError, EnvironmentTimeout)):
        return EXIT_STUCK
    return EXIT_FAILED


def describe_interrupted_compilation(run_end: RunEnd, path: pathlib.Path) -> str:
    """Return the last line of a run that a signal stopped while it compiled."""
    number = run_end.signal or run_end.received or 0
    has_checkpoint = steps_in(directory_of_host(path) / CHECKPOINTS)
    saved = describe_checkpoint(path) if has_checkpoint else "Nothing was learned yet."
    return f"sebulba: stopped by {signal.Signals(number).name} while compiling. {saved}"


def describe_unsaved(run_end: RunEnd, path: pathlib.Path) -> str:
    """Return the last line on stderr of a run that did not fail, but whose end is not saved."""
    number = run_end.signal or run_end.received
    how = f"stopped by {signal.Signals(number).name}" if number else "reached its goal"
    return (
        f"sebulba: {how}, but the last state is not saved: {escaped(run_end.unsaved or '')}."
        f" Results so far: {path}. {describe_checkpoint(path)}"
    )


def describe_unusable_checkpoint(error: CheckpointError, path: pathlib.Path) -> str:
    """Return the last line on stderr of a run that cannot resume from the chosen checkpoint."""
    parts = [f"sebulba: CheckpointError: {escaped(str(error)).splitlines()[0]}"]
    parts.append(f"Results so far: {path}.")
    if error.fits:
        whole = newest_whole_step(path / CHECKPOINTS)
        parts.append(
            f"No checkpoint is whole{_on_every_host()}; start again with another run_dir."
            if whole is None
            else f"The newest checkpoint that is whole is of cycle {whole}; to resume from it:"
            f" {resume_command(path, whole)}"
        )
    return " ".join(parts)


def describe_failure(
    error: BaseException, path: pathlib.Path, *, unsaved: str | None = None
) -> str:
    """Return the last line on stderr of a run that failed: what, where, and what is saved."""
    cause = cause_of(error)
    if isinstance(cause, GoneError):
        return (
            f"sebulba: {escaped(str(cause))}. Nothing could be saved. If the directory was moved,"
            " resume its run with the new --run-dir and --resume latest."
        )
    # JAX adds notes too.
    notes = [each for each in getattr(cause, "__notes__", ()) if each.startswith(PLACE)]
    where = f" – {notes[-1]}" if notes else "."
    parts = [f"sebulba: {escaped(describe_error(cause))}{where}"]
    if cause is not error:
        parts.append(f"Also: {error}.")
    if unsaved is not None:
        parts.append(f"The last state was not saved: {escaped(unsaved)}.")
    if isinstance(cause, NonFiniteError):
        rerun = f"{program('rerun')} {shlex.quote(str(path))}"
        parts.append(f"To repeat that update alone: {rerun}.")
    return " ".join([*parts, f"Results so far: {path}.", describe_checkpoint(path)])


def describe_lost_hosts(path: pathlib.Path) -> str:
    """Return the last line on stderr of a host that has lost contact with the others."""
    return (
        f"sebulba: host {jax.process_index()} of {jax.process_count()} lost contact with a peer:"
        " it is dead, hung or unreachable; check the other hosts' logs."
        f" Results so far: {path}. {describe_checkpoint(path)}"
    )


def describe_checkpoint(path: pathlib.Path) -> str:
    """Return which checkpoint is the last one, and the command that resumes from it."""
    # On a shared file system this host sees what the others have saved.
    directory = path / CHECKPOINTS
    steps = complete_steps(saved_by(directory, hosts_in(directory)))
    if not steps:
        return f"There is no checkpoint{_on_every_host()}."
    last = max(steps)
    return f"The last checkpoint is of cycle {last}; to resume from it: {resume_command(path)}"


def _on_every_host() -> str:
    return " on every host" if jax.process_count() > 1 else ""


def summarize(ring: Ring, *, resume_command: str | None) -> dict[str, Any]:
    """Return the contents of `summary.json`."""
    progress = ring.progress
    return {
        "status": ring.run_end.status,
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
        "all_reduce": progress.all_reduce or None,
        "bound_by": describe_bottleneck(
            progress.time_shares.shares(), all_reduce=progress.all_reduce.get("share", 0.0)
        ),
        "ledger": ring.ledger.balance(),
        "networks_crc32": networks_crc32(ring.learner),
        "resume_command": resume_command,
    }


def networks_crc32(learner: Learner) -> str | None:
    """Return the CRC32 of all leaves of the learner's networks; None within a learner cycle."""
    if not learner.is_between_cycles:
        return None
    leaves = flatten(learner.state.networks).values()
    return crc32_of(b"".join(np.asarray(leaf).tobytes() for leaf in leaves))


def describe_summary(summary: dict[str, Any], path: pathlib.Path) -> str:
    """Return the run's last line on the console."""

    def number(value: float | None, digits: int = 0) -> str:
        return "unknown" if value is None else f"{value:,.{digits}f}"

    return (
        f"{summary['status']}: {summary['env_steps']:,} env steps,"
        f" {summary['updates']:,} updates in {summary['wall_time_s']:.1f} s;"
        f" {number(summary['steps_per_second'])} env steps/s (start-up and compilation,"
        f" {number(summary['startup_s'], 1)} s, excluded);"
        f" return {number(summary['final_episode_return_mean'], 1)},"
        f" best {number(summary['best_episode_return_mean'], 1)};"
        f" networks {summary['networks_crc32'] or 'unknown'}; {path}"
    )


def end_process(code: int) -> NoReturn:
    """End the process without waiting for threads that cannot be joined.

    Interpreter shutdown would destroy state that these threads still use, and crash. Worker
    processes of environments are killed: one that hangs would outlive the run.
    """
    for child in multiprocessing.active_children():
        child.kill()
    end_at_once(code)
