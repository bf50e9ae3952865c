"""The last line on stderr of a run that failed, stopped early or could not begin."""

import pathlib
import shlex
import signal

import jax

from sebulba.devices.memory import describe_full_memory
from sebulba.errors import ALSO, PLACE, describe_error, escaped
from sebulba.hosts.joining import newest_whole_step
from sebulba.process import program
from sebulba.ring.run_end import RunEnd
from sebulba.ring.update import NonFiniteError
from sebulba.storage.checkpoints.restore import CheckpointError, steps_in
from sebulba.storage.lock import GoneError
from sebulba.storage.names import CHECKPOINTS
from sebulba.storage.run_dir import directory_of_host, resume_command, start_command
from sebulba.storage.shares import complete_steps, hosts_in, saved_by


def describe_early_stop(number: int, path: pathlib.Path, *, when: str, env_steps: int = 0) -> str:
    """Return the last line of a run that a signal stopped where its state cannot be saved.

    Args:
        number: of the signal.
        path: the run directory.
        when: where the run was, such as "while compiling".
        env_steps: that it learned from.
    """
    saved = "Nothing was learned yet."
    if steps_in(directory_of_host(path) / CHECKPOINTS):
        saved = describe_checkpoint(path)
    elif env_steps:
        saved = f"Nothing was saved yet: {env_steps:,} env steps are lost."
    return f"sebulba: stopped by {signal.Signals(number).name} {when}. {saved}"


def describe_unsaved(end: RunEnd, path: pathlib.Path) -> str:
    """Return the last line on stderr of a run that did not fail, but whose end is not saved."""
    number = end.stopped_by
    how = f"stopped by {signal.Signals(number).name}" if number else "reached its goal"
    return (
        f"sebulba: {how}, but the last state is not saved: {escaped(end.unsaved or '')}."
        f" Results so far: {path}. {describe_checkpoint(path)}"
    )


def describe_unusable_checkpoint(error: CheckpointError, path: pathlib.Path) -> str:
    """Return the last line on stderr of a run that cannot resume from the chosen checkpoint."""
    saved = saved_by(path / CHECKPOINTS, hosts_in(path / CHECKPOINTS))
    if not any(saved.values()):
        return (
            f"sebulba: CheckpointError: nothing is saved yet in {path}; to start the run from its"
            f" beginning: {start_command(path)}"
        )
    # The line before a table ends with a colon.
    reason = escaped(str(error).splitlines()[0]).removesuffix(":")
    parts = [f"sebulba: CheckpointError: {reason}."]
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
    error: BaseException,
    path: pathlib.Path,
    *,
    resumed_at: float | None,
    unsaved: str | None = None,
) -> str:
    """Return the last line on stderr of a run that failed: what, where, and what is saved.

    Args:
        error: the exception that was raised.
        path: the run directory.
        resumed_at: see `describe_checkpoint`.
        unsaved: why the last state is not saved; None: it is.
    """
    if isinstance(error, GoneError):
        return (
            f"sebulba: {escaped(str(error))}. Nothing could be saved. If the directory was moved,"
            " resume its run with the new --run-dir and --resume latest."
        )
    # JAX adds notes too.
    notes = getattr(error, "__notes__", ())
    places = [note for note in notes if note.startswith(PLACE)]
    where = f" – {places[-1]}" if places else "."
    parts = [f"sebulba: {escaped(describe_error(error))}{where}"]
    parts += [escaped(note) for note in notes if note.startswith(ALSO)]
    if (remedy := describe_full_memory(error)) is not None:
        parts.append(remedy)
    if unsaved is not None:
        parts.append(f"The last state was not saved: {escaped(unsaved)}.")
    if isinstance(error, NonFiniteError):
        rerun = f"{program('rerun')} {shlex.quote(str(path))}"
        parts.append(f"To repeat that update alone: {rerun}.")
    saved = describe_checkpoint(path, resumed_at=resumed_at)
    return " ".join([*parts, f"Results so far: {path}.", saved])


def describe_lost_hosts(path: pathlib.Path) -> str:
    """Return the last line on stderr of a host that has lost contact with the others."""
    return (
        f"sebulba: host {jax.process_index()} of {jax.process_count()} lost contact with a peer:"
        " it is dead, hung or unreachable; check the other hosts' logs."
        f" Results so far: {path}. {describe_checkpoint(path)}"
    )


def describe_checkpoint(path: pathlib.Path, *, resumed_at: float | None = None) -> str:
    """Return which checkpoint is the last one, and the command that resumes from it.

    Args:
        path: the run directory.
        resumed_at: the learner cycle of the checkpoint that the failed run resumed from, infinite
            if it was the last one; None: it was a new run. Resuming from there would fail again.
    """
    # On a shared file system this host sees what the others have saved.
    directory = path / CHECKPOINTS
    steps = complete_steps(saved_by(directory, hosts_in(directory)))
    if not steps:
        return f"There is no checkpoint{_on_every_host()}."
    last = max(steps)
    if resumed_at is not None and last <= resumed_at:
        return (
            f"The last checkpoint is of cycle {last}, from which this run resumed: correct the"
            " cause before you resume again."
        )
    return f"The last checkpoint is of cycle {last}; to resume from it: {resume_command(path)}"


def _on_every_host() -> str:
    return " on every host" if jax.process_count() > 1 else ""
