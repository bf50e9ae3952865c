"""A training run from its config to its end, and to its exit code."""

import contextlib
import dataclasses
import os
import pathlib
import shutil
import sys
import traceback
from typing import Any

import jax

from sebulba.config import Config
from sebulba.config.naming import default_run_dir
from sebulba.devices.known_answers import MiscompiledError, check_compiler
from sebulba.devices.xla_cpu import keep_freed_memory
from sebulba.devices.xla_flags import describe_xla_flags
from sebulba.errors import ConfigError, escaped
from sebulba.evaluation.rendering import load_opengl
from sebulba.hosts import connection as hosts
from sebulba.hosts.joining import check_networks, open_run_dir_together
from sebulba.hosts.rendezvous import JoinError
from sebulba.learning.non_finite import NonFiniteError
from sebulba.process import (
    EXIT_CHECKPOINT,
    EXIT_CONFIG,
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_NOT_JOINED,
    EXIT_SIGNAL_BASE,
    EXIT_UNSAVED,
)
from sebulba.ring.run_end import RunEnd
from sebulba.ring.watchdog import Timeouts
from sebulba.run.anakin import check_mode
from sebulba.run.assembly import Ring, assemble
from sebulba.run.callbacks import NO_CALLBACKS, Callbacks
from sebulba.run.endings import (
    describe_checkpoint,
    describe_failure,
    describe_interrupted_compilation,
    describe_lost_hosts,
    describe_summary,
    describe_unsaved,
    describe_unusable_checkpoint,
    end_process,
    exit_code_of,
    networks_crc32,
    summarize,
)
from sebulba.run.modes import run
from sebulba.run.outputs import Outputs, open_outputs
from sebulba.run.supervision import StuckError, start_daemon
from sebulba.run.warm_start import with_exact_source
from sebulba.storage.checkpoints.restore import CheckpointError
from sebulba.storage.lock import RunDirectoryError, RunLock
from sebulba.storage.metrics.console import Console, Display
from sebulba.storage.metrics.files import write_json
from sebulba.storage.metrics.summary import write_summary
from sebulba.storage.run_dir import (
    NON_FINITE,
    directory_of_host,
    resume_command,
)


def train(config: Config) -> int:
    """Train, and return the process's exit code.

    Results go to the run directory; progress and errors to stderr, with the cause in the last line.
    If threads do not end, this ends the process instead of returning, and so does a failure on some
    of several hosts: the ordinary end of a process would wait for the other hosts.
    """
    code = _exit_code(config)
    if hosts.are_several():
        is_failure = EXIT_DONE < code < EXIT_SIGNAL_BASE and code != EXIT_UNSAVED
        # Most bad starts are found on all hosts.
        may_be_shared = code in (EXIT_CONFIG, EXIT_CHECKPOINT)
        if is_failure and not (may_be_shared and hosts.all_end()):
            end_process(code)
        hosts.disconnect()
    return code


def _exit_code(config: Config) -> int:
    try:
        hosts.connect(config.distributed)
        return _train(config)
    except ConfigError as error:
        _print_error(f"sebulba: {error}")
        return EXIT_CONFIG
    except JoinError as error:
        _print_error(f"sebulba: {error}. Start all hosts again, within that time.")
        return EXIT_NOT_JOINED
    except CheckpointError as error:
        path = pathlib.Path(_with_absolute_run_dir(config)[0].run_dir or "")
        _print_error(f"{error}\n{describe_unusable_checkpoint(error, path)}")
        return EXIT_CHECKPOINT
    except MiscompiledError as error:
        _print_error(f"sebulba: {error}")
        return EXIT_FAILED
    except Exception as error:
        _print_error("".join(traceback.format_exception(error)))
        _print_error(f"sebulba: {type(error).__name__}: {error} – before the start.")
        return EXIT_FAILED


@dataclasses.dataclass(frozen=True, kw_only=True)
class EndedRun:
    """A run that has ended: saved, its files closed, its lock given back."""

    config: Config  # with the complete path of the run directory
    path: pathlib.Path  # the run directory
    run_end: RunEnd
    ring: Ring | None  # None: it failed before there was one


def _train(config: Config) -> int:
    ended = run_to_end(config)
    run_end, path = ended.run_end, ended.path
    code, failure = exit_code_of(run_end), run_end.failure
    is_compiling = isinstance(failure, StuckError) and failure.is_compiling
    if is_compiling and code > EXIT_SIGNAL_BASE:
        _print_error(describe_interrupted_compilation(run_end, path))
    elif failure is not None:
        if not isinstance(failure, RunDirectoryError):
            _print_error("".join(traceback.format_exception(failure)))
        _print_error(describe_failure(failure, path, unsaved=run_end.unsaved))
    elif run_end.unsaved is not None:
        _print_error(describe_unsaved(run_end, path))
    if isinstance(failure, StuckError) or (failure is not None and hosts.are_several()):
        end_process(code)
    return code


def run_to_end(
    config: Config, *, display: Display | None = None, callbacks: Callbacks = NO_CALLBACKS
) -> EndedRun:
    """Train to the goal, a signal or a failure, which the result's `run_end` holds.

    Stop signals are received in the main thread only.

    Args:
        config: of the run.
        display: takes rows and lines of text; None: a console on stderr.
        callbacks: called in this thread with rows of metrics and evaluations.

    Raises:
        ConfigError: before the first act cycle: the config does not fit devices, agent or
            environment. Later such errors are failures of the run like any other.
        CheckpointError: before the first act cycle: the run cannot be resumed.
    """
    prepare_process(config)
    config, is_new = _with_absolute_run_dir(config)
    config = with_exact_source(config)
    on_message = _print_error if display is None else display.message
    path, lock = open_run_dir_together(config, on_message=on_message)
    lock.keep(start_daemon)
    hosts.exit_when_lost(EXIT_FAILED, lambda: describe_lost_hosts(path))
    console = display or Console(config.run.total_env_steps)
    console.message(f"{config.agent.name} on {config.env.suite} {config.env.id}, into {path}")
    if flags := describe_xla_flags():
        console.message(f"compiler: {flags}")
    try:
        with RunEnd(hosts_agree=hosts.are_several()).listening() as run_end:
            return _run(config, path, lock, console, run_end, callbacks)
    except ConfigError:
        # Only what this process made, and nothing was learned yet.
        if is_new and hosts.is_first():
            shutil.rmtree(path)
        raise
    finally:
        lock.release()


def _with_absolute_run_dir(config: Config) -> tuple[Config, bool]:
    """Return the config with its run directory in full, and whether there is none there yet.

    Environments may change the working directory.
    """
    name = os.path.expandvars(config.run_dir or default_run_dir(config))
    path = pathlib.Path(name).expanduser().absolute()
    return dataclasses.replace(config, run_dir=str(path)), not path.exists()


def _print_error(text: str) -> None:
    # Nobody may be reading: `2>&-`, or a terminal that is gone.
    with contextlib.suppress(OSError, ValueError):
        print(escaped(text).rstrip(), file=sys.stderr)


def _run(
    config: Config,
    path: pathlib.Path,
    lock: RunLock,
    console: Display,
    run_end: RunEnd,
    callbacks: Callbacks,
) -> EndedRun:
    """Run to the goal, a signal or a failure, and leave everything saved; see `run_to_end`."""

    def write_row(row: dict[str, Any]) -> None:
        assert outputs is not None, "no cycle runs before they are open"
        outputs.fan_out.put(row)
        if hosts.is_first():
            console.update(row)
        callbacks.add("metrics", row)

    def poll() -> None:
        assert outputs is not None
        outputs.poll()
        callbacks.deliver(run_end)

    ring: Ring | None = None
    outputs: Outputs | None = None
    has_begun = False
    try:
        ring = assemble(config, write_row=write_row, on_warning=console.message, run_end=run_end)
        check_mode(ring)
        console.message(f"memory: {ring.memory_plan.describe()}")
        outputs = open_outputs(
            ring,
            config,
            path,
            lock,
            console.message,
            on_evaluation=lambda row: callbacks.add("evaluation", row),
        )
        check_networks(networks_crc32(ring.learner))
        has_begun = True
        run(
            ring,
            mode=config.run.mode,
            writer_queues=outputs.fan_out.queues,
            after_cycle=outputs.after_cycle,
            on_poll=poll,
            timeouts=Timeouts(
                env_s=config.actor.env_timeout_s,
                update_s=config.learner.update_timeout_s,
                compile_s=config.run.compile_timeout_s,
            ),
        )
    # `BaseException`: a `SystemExit` of a thread is raised here too.
    except BaseException as error:
        if not has_begun and isinstance(error, (ConfigError, CheckpointError)):
            raise
        run_end.failure = error
    finally:
        threads_have_ended = not isinstance(run_end.failure, StuckError)
        if outputs is not None:
            _verify_lock(lock, run_end)
            failure = outputs.close(run_end, threads_have_ended=threads_have_ended)
            run_end.failure = run_end.failure or failure or callbacks.finish(run_end)
        if ring is not None and threads_have_ended:
            ring.close_environments()
        console.close()
    if isinstance(run_end.failure, NonFiniteError):
        _write_non_finite(run_end.failure, path, console)
    if ring is not None and outputs is not None:
        _summarize(ring, path, lock, console)
    return EndedRun(config=config, path=path, run_end=run_end, ring=ring)


def _verify_lock(lock: RunLock, run_end: RunEnd) -> None:
    """Let a run fail whose directory is gone or another run's."""
    try:
        lock.verify()
    except RunDirectoryError as error:
        run_end.failure = run_end.failure or error


def _summarize(ring: Ring, path: pathlib.Path, lock: RunLock, console: Display) -> None:
    summary = summarize(ring, resume_command=resume_command(path))
    try:
        lock.raise_if_lost()
        write_summary(directory_of_host(path) / "summary.json", summary)
    except (OSError, RunDirectoryError) as error:
        console.message(f"summary: not written: {error}")
    line = describe_summary(summary, path)
    is_interrupted = summary["status"] == "interrupted"
    console.message(f"{line}. {describe_checkpoint(path)}" if is_interrupted else line)


def _write_non_finite(error: NonFiniteError, path: pathlib.Path, console: Display) -> None:
    """Write which checkpoint holds the state that the update saw: the one taken after its cycle."""
    place = {"update": error.update, "learner_cycle": error.cycle, "checkpoint": error.cycle + 1}
    try:
        write_json(path / NON_FINITE, place)
    except OSError as failure:
        console.message(f"{NON_FINITE}: not written: {failure}")


def prepare_process(config: Config) -> None:
    """Set process-wide options; call it before JAX starts its threads.

    Raises:
        MiscompiledError: XLA computes wrong numbers on this machine.
    """
    use_compilation_cache()
    if config.run.keep_memory:
        keep_freed_memory()
    check_compiler()
    if config.evaluation.video is not None:
        load_opengl()  # EnvPool looks for OpenGL only when it is imported.


def use_compilation_cache() -> None:
    """Keep compiled programs between runs, unless the user has chosen a directory."""
    if jax.config.values["jax_compilation_cache_dir"] is None:
        cache = pathlib.Path.home() / ".cache" / "sebulba" / "jax"
        jax.config.update("jax_compilation_cache_dir", str(cache))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
