"""The one end of a run: what is closed and saved, its summary, its exit code and its last line."""

import contextlib
import dataclasses
import math
import pathlib
import shlex
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import rich.console

from sebulba.config import Config
from sebulba.config.loading import flag_name
from sebulba.config.objects import unimportable_objects
from sebulba.devices.known_answers import MiscompiledError
from sebulba.envs.base import EnvironmentTimeout
from sebulba.envs.closing import close_environments
from sebulba.errors import ALSO, ConfigError, escaped
from sebulba.hosts import connection as hosts
from sebulba.hosts.rendezvous import JoinError
from sebulba.process import (
    EXIT_CHECKPOINT,
    EXIT_CONFIG,
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_NON_FINITE,
    EXIT_NOT_JOINED,
    EXIT_SIGNAL_BASE,
    EXIT_STUCK,
    EXIT_UNSAVED,
    end_process,
    program,
)
from sebulba.ring.ring import Ring
from sebulba.ring.run_end import RunEnd, StoppedAtStart, StuckError
from sebulba.ring.threads import WatchdogError
from sebulba.ring.update import NonFiniteError
from sebulba.run.callbacks import Callbacks
from sebulba.run.last_lines import (
    describe_checkpoint,
    describe_early_stop,
    describe_failure,
    describe_unsaved,
    describe_unusable_checkpoint,
)
from sebulba.run.observers import RunObservers
from sebulba.run.remote_actors import describe_remote_actors
from sebulba.run.summary import (
    describe_early_end,
    describe_result,
    networks_crc32,
    summarize,
)
from sebulba.storage.checkpoints.restore import CheckpointError
from sebulba.storage.lock import GoneError, RunDirectoryError
from sebulba.storage.metrics.console import Display, laid_out
from sebulba.storage.metrics.files import write_json
from sebulba.storage.names import METRICS, NON_FINITE, SUMMARY
from sebulba.storage.run_dir import directory_of_host, resume_command

_CODES_BEFORE_START: tuple[tuple[type[BaseException], int], ...] = (
    (ConfigError, EXIT_CONFIG),
    (CheckpointError, EXIT_CHECKPOINT),
    (JoinError, EXIT_NOT_JOINED),
)
"""Exit codes of what is raised before the first learner cycle, by the type of the error."""
_CODES: tuple[tuple[type[BaseException] | tuple[type[BaseException], ...], int], ...] = (
    (GoneError, EXIT_UNSAVED),
    (NonFiniteError, EXIT_NON_FINITE),
    ((StuckError, WatchdogError, EnvironmentTimeout), EXIT_STUCK),
)
"""Exit codes of failures by the type of the error; of all others `EXIT_FAILED`."""
_SAVED_WITHIN_S = 60.0


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Finished:
    """A run that has ended: saved, its files closed."""

    config: Config  # with the complete path of the run directory
    path: pathlib.Path  # the run directory
    end: RunEnd
    ring: Ring
    callers: Callbacks  # closed, like all observers
    summary: dict[str, Any]  # the contents of `summary.json`
    resumed_at: int | None = None  # the learner cycle of the checkpoint that it resumed from


def finish(
    ring: Ring,
    observers: RunObservers,
    config: Config,
    path: pathlib.Path,
    display: Display,
    *,
    started_in: pathlib.Path,
    resumed_at: int | None = None,
) -> Finished:
    """Close all observers, write the summary, and close the environments; never raises.

    The first failure of the run is its cause; later ones are notes on it. Environments are last,
    since native code may end the process in their `close`.

    Args:
        ring: a ring whose threads have ended, unless it is stuck.
        observers: the run's observers.
        config: the run's settings.
        path: the run directory.
        display: takes lines of text.
        started_in: the working directory at the start, which environments may have changed.
        resumed_at: the learner cycle of the checkpoint that the run resumed from; None: of none.
    """
    end = ring.end
    for observer in reversed(observers.in_order):
        with end.collecting():
            observer.close(end)
    checksum = None
    with end.collecting():
        checksum = networks_crc32(ring)
    end.finalize()
    summary = summarize(
        ring,
        config.run,
        path,
        all_reduce=observers.rows.all_reduce,
        remote_actors=observers.rows.remote_actors,
        dropped_rows=observers.rows.dropped_rows,
        networks_crc32=checksum,
    )
    with end.collecting():
        if isinstance(end.failure, NonFiniteError):
            _write_non_finite(end.failure, path, display)
        if isinstance(end.failure, RunDirectoryError):
            display.message(f"summary: not written: {end.failure}")
        else:
            _write_summary(summary, path, display)
        if not end.is_stuck:
            _close_environments(ring, config.run.close_timeout_s, display)
        display.close()
        display.detail(f"networks: CRC32 {summary['networks_crc32'] or 'unknown'}")
        if end.failure is None:  # else this host ends the others
            # The last checkpoint is complete once they have saved their shares.
            hosts.meet(_SAVED_WITHIN_S, may_wait=lambda: not end.has_late_signal)
        _show_result(
            summary,
            config,
            path,
            display,
            started_in=started_in,
            goals_reached=ring.progress.goals_reached,
        )
    return Finished(
        config=config,
        path=path,
        end=end,
        ring=ring,
        callers=observers.callers,
        summary=summary,
        resumed_at=resumed_at,
    )


def _show_result(
    summary: dict[str, Any],
    config: Config,
    path: pathlib.Path,
    display: Display,
    *,
    started_in: pathlib.Path,
    goals_reached: Sequence[str],
) -> None:
    """Show how the run has ended, and the commands that are useful next."""
    status, resume = summary["status"], summary["resume_command"]
    for line in describe_remote_actors(summary["remote_actors"] or {}):
        display.message(line)
    if status == "done":
        for line in describe_result(summary, return_window=config.run.return_window):
            display.message(line)
    has_learned = summary["updates"] > 0 and resume is not None
    if status in ("done", "interrupted") and has_learned and hosts.is_first():
        directory, metrics = shlex.quote(path_from(started_in, path)), path / METRICS
        objects = [name for _, name in unimportable_objects(config)]
        if objects:
            line = f"no command can import {' or '.join(objects)}; to evaluate or continue, give"
            display.message(f"{line} the object itself to sebulba.load_policy or sebulba.train")
        else:
            display.message("evaluate:", command=f"{program('evaluate')} {directory}")
        if metrics.is_file() and metrics.stat().st_size:
            plot = f"{program('plot')} {directory} -o {directory}/plot.png"
            display.message("plot:", command=plot)
        # Several hosts need a command each.
        if status == "done" and not objects and not hosts.are_several():
            longer = f"{program('train')} --run-dir {directory} --resume latest"
            for name in goals_reached:
                later: int | None = None
                if name in ("total_env_steps", "total_episodes"):
                    later, reached = getattr(config.run, name), summary[name.removeprefix("total_")]
                    while later <= reached:
                        later *= 2
                longer += f" {flag_name(f'run.{name}')} {'null' if later is None else later}"
            display.message("continue:", command=longer)
    if status != "done":
        line = describe_early_end(summary, path)
        if status == "interrupted":
            line = f"{line}. {describe_checkpoint(path)}"
        command = resume if resume and line.endswith(resume) else ""
        display.message(line.removesuffix(command).rstrip(), command=command)


def path_from(directory: pathlib.Path, path: pathlib.Path) -> str:
    """Return a path as a command in a directory names it: relative if it is inside."""
    return str(path.relative_to(directory) if path.is_relative_to(directory) else path)


def _close_environments(ring: Ring, timeout_s: float, display: Display) -> None:
    """Close every actor's environments, for a limited time.

    A run that has reached its goal stays done, with a warning; on a failure, it is a note.
    """
    end = ring.end
    environments = {f"actor {actor.actor_id}": actor.collector for actor in ring.actors}
    for problem in close_environments(
        environments, timeout_s, may_wait=lambda: not end.has_late_signal
    ):
        end.is_closing = end.is_closing or problem.is_running
        if end.failure is None:
            display.message(f"warning: {problem}")
        else:
            end.failure.add_note(f"{ALSO} {problem}.")


def _write_summary(summary: dict[str, Any], path: pathlib.Path, display: Display) -> None:
    try:
        write_json(directory_of_host(path) / SUMMARY, summary)
    except OSError as error:
        display.message(f"summary: not written: {error}")


def _write_non_finite(error: NonFiniteError, path: pathlib.Path, display: Display) -> None:
    """Write which checkpoint holds the state that the update saw: the one taken after its cycle."""
    where = {
        "update": error.update,
        "learner_cycle": error.cycle,
        "env_steps": error.env_steps,
        "checkpoint": error.cycle + 1,
    }
    try:
        write_json(path / NON_FINITE, where)
    except OSError as failure:
        display.message(f"{NON_FINITE}: not written: {failure}")


def exit_code_of(end: RunEnd) -> int:
    """Return the exit code of a run that has ended by a failure, a signal or its goal."""
    failure = end.failure
    if failure is None and end.unsaved is not None:
        return EXIT_UNSAVED
    if end.is_interrupted and (failure is None or isinstance(failure, StuckError)):
        return EXIT_SIGNAL_BASE + (end.stopped_by or 0)
    if failure is None:
        return EXIT_DONE
    return next((code for types, code in _CODES if isinstance(failure, types)), EXIT_FAILED)


def report(finished: Finished) -> int:
    """Print how a run has ended unless it is done, and return its exit code.

    Ends the process instead of returning if threads of the run have not ended, or if others of
    several hosts may still run: the ordinary end of a process would wait for them.
    """
    end, path = finished.end, finished.path
    failure, code = end.failure, exit_code_of(end)
    if end.interrupted_while:
        number = end.stopped_by or 0
        env_steps = finished.summary["env_steps"]
        when = f"while {end.interrupted_while}"
        line = describe_early_stop(number, path, when=when, env_steps=env_steps)
        _print_last_line(line, path)
    elif failure is not None:
        if not isinstance(failure, RunDirectoryError):
            print_error("".join(traceback.format_exception(failure)))
        line = describe_failure(failure, path, unsaved=end.unsaved, resumed_at=finished.resumed_at)
        _print_last_line(line, path)
    elif end.unsaved is not None:
        _print_last_line(describe_unsaved(end, path), path)
    if end.is_stuck or end.is_closing or (failure is not None and hosts.are_several()):
        end_process(code)
    return code


def report_before_start(error: BaseException, path: pathlib.Path, *, is_resume: bool) -> int:
    """Print why a run could not begin, and return the exit code.

    Args:
        error: the exception that was raised.
        path: the run directory.
        is_resume: whether the run was to resume from a checkpoint.
    """
    code = next(
        (code for kind, code in _CODES_BEFORE_START if isinstance(error, kind)), EXIT_FAILED
    )
    if isinstance(error, StoppedAtStart):
        print_error(describe_early_stop(error.number, path, when="before the first act cycle"))
        return EXIT_SIGNAL_BASE + error.number
    if isinstance(error, CheckpointError):
        print_error(f"{error}\n{describe_unusable_checkpoint(error, path)}")
    elif isinstance(error, JoinError):
        print_error(f"sebulba: {error}. Start all hosts again, within that time.")
    elif isinstance(error, (ConfigError, MiscompiledError)):
        print_error(f"sebulba: {error}")
    else:
        print_error("".join(traceback.format_exception(error)))
        print_error(describe_failure(error, path, resumed_at=math.inf if is_resume else None))
    return code


def print_error(text: str) -> None:
    """Print a text to stderr, whose control characters are escaped."""
    # Nobody may be reading: `2>&-`, or a terminal that is gone.
    with contextlib.suppress(OSError, ValueError):
        print(escaped(text).rstrip(), file=sys.stderr)


def _print_last_line(line: str, path: pathlib.Path) -> None:
    """Print the last line of a run to stderr; a terminal gets it in lines that fit."""
    with contextlib.suppress(OSError, ValueError):  # as in `print_error`
        if sys.stderr.isatty():
            resume = resume_command(path)
            command = resume if resume and line.endswith(resume) else ""
            width = rich.console.Console(stderr=True).width
            line = laid_out(line.removesuffix(command).rstrip(), command, width)
    print_error(line)
