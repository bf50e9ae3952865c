"""A training run from its config to its exit code."""

import dataclasses
import pathlib
import shutil
import sys
import traceback
from typing import Any

import jax

from sebulba.assembly import Ring, assemble
from sebulba.autosave import Autosave
from sebulba.checkpoints.checkpointer import Checkpointer
from sebulba.checkpoints.restore import CheckpointError, Which, steps_in
from sebulba.config import Config
from sebulba.errors import ConfigError
from sebulba.metrics.base import MetricsWriter
from sebulba.metrics.console import Console
from sebulba.metrics.csv import CsvWriter
from sebulba.metrics.jsonl import JsonlWriter
from sebulba.metrics.summary import write_summary
from sebulba.metrics.tensorboard import TensorBoardWriter
from sebulba.metrics.wandb import WandbWriter
from sebulba.metrics.writers import MetricsFanOut
from sebulba.run_dir import CHECKPOINTS, open_run_dir, resume_command
from sebulba.run_state import resume
from sebulba.runner import StopSignal, StuckError, run
from sebulba.timing import describe_binding

EXIT_DONE = 0
EXIT_CONFIG = 2
EXIT_FAILED = 3
EXIT_CHECKPOINT = 4
EXIT_SIGNAL_BASE = 128

_WRITERS_DEADLINE_S = 5.0


def train(config: Config) -> int:
    """Trains as `config` says, and returns the process's exit code.

    Results go to the run directory; progress and errors to stderr, the cause in the last line.
    """
    try:
        return _train(config)
    except ConfigError as error:
        print(f"sebulba: {error}", file=sys.stderr)
        return EXIT_CONFIG
    except CheckpointError as error:
        print(f"{error}\n{describe_failure(error, pathlib.Path(config.run_dir))}", file=sys.stderr)
        return EXIT_CHECKPOINT


def _train(config: Config) -> int:
    _use_compilation_cache()
    path = open_run_dir(config)
    console = Console(config.run.total_env_steps)
    console.message(f"{config.agent.name} on {config.env.suite} {config.env.id}, into {path}")
    try:
        with StopSignal().installed() as stop:
            error = _run(config, path, console, stop)
    except ConfigError:
        if config.resume is None:
            shutil.rmtree(path)
        raise
    if error is not None:
        traceback.print_exception(error)
        print(describe_failure(error, path), file=sys.stderr)
        return EXIT_FAILED
    return EXIT_DONE if stop.number is None else EXIT_SIGNAL_BASE + stop.number


def _run(
    config: Config, path: pathlib.Path, console: Console, stop: StopSignal
) -> Exception | None:
    """Runs to the goal, a signal or a failure, and leaves everything saved; returns the failure."""

    def write_row(row: dict[str, Any]) -> None:
        outputs.fan_out.put(row)
        console.update(row)

    error: Exception | None = None
    ring: Ring | None = None
    outputs: _Outputs | None = None
    try:
        ring = assemble(config, write_row=write_row)
        console.message(f"memory: {ring.memory_plan.describe()}")
        outputs = _open_outputs(ring, config, path, console)
        run(
            ring,
            mode=config.run.mode,
            lanes=outputs.fan_out.lanes,
            should_stop=stop.is_set,
            after_cycle=outputs.autosave.after_cycle,
            on_poll=outputs.autosave.poll,
        )
    except (ConfigError, CheckpointError):
        raise
    except Exception as caught:
        error = caught
    finally:
        if outputs is not None:
            failure = outputs.close(threads_have_ended=not isinstance(error, StuckError))
            error = error or failure
        if ring is not None:
            ring.close_environments()
        console.close()
    if outputs is not None:
        status = "failed" if error else "interrupted" if stop.is_set() else "done"
        summary = summarize(ring, status=status, resume_command=resume_command(path))
        write_summary(path / "summary.json", summary)
        console.message(describe_summary(summary, path))
    return error


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Outputs:
    """Where a run's rows and checkpoints go."""

    fan_out: MetricsFanOut
    autosave: Autosave

    def close(self, *, threads_have_ended: bool) -> Exception | None:
        """Saves the run and closes all files; returns what kept it from being saved."""
        try:
            self.autosave.finish(threads_have_ended=threads_have_ended)
        except Exception as error:
            return error
        finally:
            self.fan_out.close(_WRITERS_DEADLINE_S)
        return None


def _open_outputs(ring: Ring, config: Config, path: pathlib.Path, console: Console) -> _Outputs:
    """Opens the run's files, at the checkpoint that the ring is to go on from if there is one.

    Raises:
        CheckpointError: it cannot be used; no file has been touched.
    """
    directory, env_steps, resumed = path / CHECKPOINTS, None, None
    if config.resume is not None:
        resumed = resume(ring, directory, _which(config.resume))
        env_steps = resumed.env_steps
        console.message(str(resumed))
    checkpointer = Checkpointer(directory, keep=config.checkpoint.keep)
    if resumed is not None:
        checkpointer.discard_after(resumed.num_cycles)
    return _Outputs(
        fan_out=MetricsFanOut(
            _writers(config, path, resume_env_steps=env_steps),
            on_warning=console.message,
        ),
        autosave=Autosave(
            ring,
            checkpointer,
            interval_s=config.checkpoint.interval_s,
            on_warning=console.message,
        ),
    )


def _writers(
    config: Config, path: pathlib.Path, *, resume_env_steps: int | None
) -> list[MetricsWriter]:
    writers: list[MetricsWriter] = [
        JsonlWriter(path / "metrics.jsonl", resume_env_steps=resume_env_steps),
        CsvWriter(path / "metrics.csv", resume_env_steps=resume_env_steps),
        TensorBoardWriter(path, resume_env_steps=resume_env_steps),
    ]
    if config.run.wandb_project is not None:
        project, settings = config.run.wandb_project, dataclasses.asdict(config)
        writers.append(
            WandbWriter(path / "wandb", project=project, name=path.name, config=settings)
        )
    return writers


def _which(resume: str) -> Which:
    return int(resume) if resume.isdecimal() else resume


def summarize(ring: Ring, *, status: str, resume_command: str | None) -> dict[str, Any]:
    """Returns what `summary.json` holds."""
    progress = ring.progress
    return {
        "status": status,
        "env_steps": progress.env_steps,
        "updates": progress.updates,
        "learner_cycles": ring.learner.num_cycles,
        "wall_time_s": progress.wall_time_s,
        "startup_s": progress.startup_s,
        "steps_per_second": progress.steps_per_second,
        "steps_per_second_counts": "env steps learned from, start-up and compilation excluded",
        "episodes": progress.window.num_episodes,
        "best_episode_return_mean": progress.window.best_return_mean,
        "final_episode_return_mean": progress.window.return_mean,
        "episode_return_last": progress.window.last_return,
        "time_shares": progress.time_shares.shares(),
        "bound_by": describe_binding(progress.time_shares.shares()),
        "ledger": ring.ledger.balance(),
        "resume_command": resume_command,
    }


def describe_failure(error: BaseException, path: pathlib.Path) -> str:
    """Returns the last line on stderr of a run that failed: what, where, and what is left."""
    what = str(error).strip().splitlines() or [""]
    # The runner's note is the last; JAX adds others before it.
    where = getattr(error, "__notes__", [""])[-1]
    return (
        f"sebulba: {type(error).__name__}: {what[0]} – {where} Results so far: {path}."
        f" {_describe_checkpoint(path)}"
    )


def _describe_checkpoint(path: pathlib.Path) -> str:
    steps = steps_in(path / CHECKPOINTS)
    if not steps:
        return "There is no checkpoint."
    return f"The last checkpoint is of cycle {steps[-1]}; to go on from it: {resume_command(path)}"


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


def _use_compilation_cache() -> None:
    """Keeps compiled programs between runs, unless the user has chosen where."""
    if jax.config.jax_compilation_cache_dir is None:
        cache = pathlib.Path.home() / ".cache" / "sebulba" / "jax"
        jax.config.update("jax_compilation_cache_dir", str(cache))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
