"""A training run from its config to its exit code."""

import pathlib
import shutil
import sys
import traceback
from typing import Any

import jax

from sebulba.config import Config
from sebulba.devices.host_memory import keep_large_blocks
from sebulba.errors import ConfigError
from sebulba.exit_codes import (
    EXIT_CHECKPOINT,
    EXIT_CONFIG,
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_SIGNAL_BASE,
)
from sebulba.hosts import connection as hosts
from sebulba.hosts.joining import check_networks, open_run_dir_together
from sebulba.learning.non_finite import NonFiniteError
from sebulba.run.assembly import Ring, assemble
from sebulba.run.endings import (
    describe_checkpoint,
    describe_failure,
    describe_loss,
    describe_summary,
    end_process,
    exit_code_of,
    networks_crc32,
    summarize,
)
from sebulba.run.outputs import Outputs, open_outputs
from sebulba.run.supervision import StopSignal, StuckError, run
from sebulba.storage.checkpoints.restore import CheckpointError
from sebulba.storage.metrics.console import Console
from sebulba.storage.metrics.files import write_json
from sebulba.storage.metrics.summary import write_summary
from sebulba.storage.run_dir import NON_FINITE, directory_of_host, resume_command


def train(config: Config) -> int:
    """Trains as `config` says, and returns the process's exit code.

    Results go to the run directory; progress and errors to stderr, the cause in the last line. With
    threads that do not end it does not return, but ends the process; so it does with any failure
    on several hosts, whose ordinary end would wait for the others.
    """
    code = _exit_code(config)
    if hosts.are_several():
        if EXIT_DONE < code < EXIT_SIGNAL_BASE:
            end_process(code)
        hosts.disconnect()
    return code


def _exit_code(config: Config) -> int:
    try:
        hosts.connect(config.distributed)
        return _train(config)
    except ConfigError as error:
        print(f"sebulba: {error}", file=sys.stderr)
        return EXIT_CONFIG
    except CheckpointError as error:
        print(
            f"{error}\n{describe_failure(error, pathlib.Path(config.run_dir or '.'))}",
            file=sys.stderr,
        )
        return EXIT_CHECKPOINT
    except Exception as error:
        if not hosts.are_several():
            raise
        traceback.print_exception(error)
        print(f"sebulba: {type(error).__name__}: {error} – before the start.", file=sys.stderr)
        return EXIT_FAILED


def _train(config: Config) -> int:
    prepare_process(config)
    path = open_run_dir_together(config)
    hosts.exit_when_lost(EXIT_FAILED, lambda: describe_loss(path))
    console = Console(config.run.total_env_steps)
    console.message(f"{config.agent.name} on {config.env.suite} {config.env.id}, into {path}")
    try:
        with StopSignal().installed() as stop:
            error = _run(config, path, console, stop)
    except ConfigError:
        if config.resume is None and hosts.is_first():
            shutil.rmtree(path)
        raise
    if error is not None:
        traceback.print_exception(error)
        print(describe_failure(error, path), file=sys.stderr)
    code = exit_code_of(error, stop.number)
    if isinstance(error, StuckError):
        end_process(code)
    return code


def _run(
    config: Config, path: pathlib.Path, console: Console, stop: StopSignal
) -> BaseException | None:
    """Runs to the goal, a signal or a failure, and leaves everything saved; returns the failure."""

    def write_row(row: dict[str, Any]) -> None:
        assert outputs is not None, "no cycle has run before they are open"
        outputs.fan_out.put(row)
        if hosts.is_first():
            console.update(row)

    error: BaseException | None = None
    ring: Ring | None = None
    outputs: Outputs | None = None
    try:
        ring = assemble(config, write_row=write_row, on_warning=console.message)
        console.message(f"memory: {ring.memory_plan.describe()}")
        outputs = open_outputs(ring, config, path, console.message)
        check_networks(networks_crc32(ring.learner))
        agreement = ring.progress.agreement
        agreement.asks_to_stop = lambda: stop.number
        run(
            ring,
            mode=config.run.mode,
            writer_queues=outputs.fan_out.queues,
            # Several hosts stop together, after the learner cycle in which they have agreed to.
            should_stop=(lambda: False) if hosts.are_several() else stop.is_set,
            after_cycle=outputs.after_cycle,
            on_poll=outputs.poll,
            env_timeout_s=config.actor.env_timeout_s,
            update_timeout_s=config.learner.update_timeout_s,
        )
        stop.number = stop.number or agreement.stop_signal
    except (ConfigError, CheckpointError):
        raise
    # What a thread raises is raised here, `SystemExit` too.
    except BaseException as caught:
        error = caught
    finally:
        is_stuck = isinstance(error, StuckError)
        if outputs is not None:
            failure = outputs.close(
                threads_have_ended=not is_stuck, is_done=error is None, should_stop=stop.is_set
            )
            error = error or failure
        if ring is not None and not is_stuck:
            ring.close_environments()
        console.close()
    if isinstance(error, NonFiniteError):
        _write_non_finite(error, path, console)
    if ring is not None and outputs is not None:
        status = "failed" if error else "interrupted" if stop.is_set() else "done"
        _summarize(ring, path, console, status)
    return error


def _summarize(ring: Ring, path: pathlib.Path, console: Console, status: str) -> None:
    summary = summarize(ring, status=status, resume_command=resume_command(path))
    try:
        write_summary(directory_of_host(path) / "summary.json", summary)
    except OSError as error:
        console.message(f"summary: not written: {error}")
    line = describe_summary(summary, path)
    console.message(line if status != "interrupted" else f"{line}. {describe_checkpoint(path)}")


def _write_non_finite(error: NonFiniteError, path: pathlib.Path, console: Console) -> None:
    """Says which checkpoint holds the state that the update saw: the one taken after its cycle."""
    place = {"update": error.update, "learner_cycle": error.cycle, "checkpoint": error.cycle + 1}
    try:
        write_json(path / NON_FINITE, place)
    except OSError as failure:
        console.message(f"{NON_FINITE}: not written: {failure}")


def prepare_process(config: Config) -> None:
    """Sets what holds for the whole process; called before JAX starts its threads."""
    use_compilation_cache()
    if config.run.keep_memory:
        keep_large_blocks()


def use_compilation_cache() -> None:
    """Keeps compiled programs between runs, unless the user has chosen where."""
    if jax.config.values["jax_compilation_cache_dir"] is None:
        cache = pathlib.Path.home() / ".cache" / "sebulba" / "jax"
        jax.config.update("jax_compilation_cache_dir", str(cache))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
