"""The files of a run: rows of metrics, checkpoints and evaluations."""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Sequence

from sebulba.config import Config
from sebulba.evaluation.episodes import EvaluationPlan, Evaluator
from sebulba.evaluation.rendering import with_rendering
from sebulba.evaluation.stored import parse_which
from sebulba.hosts import connection as hosts
from sebulba.hosts.joining import resume_together
from sebulba.ring.run_end import RunEnd
from sebulba.run.assembly import Ring
from sebulba.run.autosave import Autosave
from sebulba.run.evaluation import PeriodicEvaluation
from sebulba.run.evaluation_outputs import EvaluationVideos, EvaluationWriter
from sebulba.run.profile import PROFILE, Profiler
from sebulba.run.state import resume
from sebulba.run.supervision import start_daemon
from sebulba.storage.checkpoints.checkpointer import Checkpointer
from sebulba.storage.lock import RunLock, TakenOverError
from sebulba.storage.metrics.base import MetricsWriter, Row
from sebulba.storage.metrics.csv import CsvWriter
from sebulba.storage.metrics.jsonl import JsonlWriter
from sebulba.storage.metrics.tensorboard import TensorBoardWriter
from sebulba.storage.metrics.wandb import WandbWriter
from sebulba.storage.metrics.writers import MetricsFanOut
from sebulba.storage.run_dir import (
    CHECKPOINTS,
    EVALUATIONS,
    directory_of_host,
    flat_config,
    record_in_run_json,
)
from sebulba.types import TrajectoryItem

_WRITERS_DEADLINE_S = 2.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outputs:
    """Everything that a run writes."""

    fan_out: MetricsFanOut
    autosave: Autosave
    evaluation: PeriodicEvaluation | None
    profiler: Profiler | None
    lock: RunLock

    def after_cycle(self, items: Sequence[TrajectoryItem]) -> None:
        """Record a learner cycle, in the learner's thread."""
        self.autosave.after_cycle(items)
        if self.evaluation is not None:
            self.evaluation.after_cycle(items)
        if self.profiler is not None:
            self.profiler.after_cycle()

    def poll(self) -> None:
        """Save and evaluate if it is due, in the supervisor's thread.

        Raises:
            RunDirectoryError: nothing can be saved any more.
        """
        self.lock.raise_if_lost()
        self.autosave.poll()
        if self.evaluation is not None:
            self.evaluation.poll()

    def close(self, run_end: RunEnd, *, threads_have_ended: bool) -> Exception | None:
        """Save the run, evaluate its last networks and close all files; return the failure."""
        try:
            may_save = not isinstance(run_end.failure, TakenOverError)
            self.autosave.finish(threads_have_ended=threads_have_ended, may_save=may_save)
            if self.evaluation is not None and run_end.failure is None:
                self.evaluation.finish(run_end)
        except Exception as error:
            return error
        finally:
            if self.profiler is not None:
                self.profiler.close()
            if self.evaluation is not None:
                self.evaluation.close()
            self.fan_out.close(_WRITERS_DEADLINE_S)
        return None


def open_outputs(
    ring: Ring,
    config: Config,
    path: pathlib.Path,
    lock: RunLock,
    on_message: Callable[[str], None],
    *,
    on_evaluation: Callable[[Row], None] = lambda row: None,
) -> Outputs:
    """Open the run's files; to resume, bring the ring to its checkpoint first.

    `on_evaluation` takes a row for each evaluation, in the supervisor's thread.

    Raises:
        CheckpointError: the checkpoint cannot be used; no file has been changed.
    """
    own = directory_of_host(path)
    directory, env_steps, resumed = own / CHECKPOINTS, None, None
    if config.resume is not None:
        first = path / CHECKPOINTS
        resumed = resume_together(
            functools.partial(resume, ring, first), first, parse_which(config.resume)
        )
        env_steps = resumed.env_steps
        on_message(str(resumed))
    if ring.warm_start is not None:
        on_message(str(ring.warm_start))
        if hosts.is_first():
            record_in_run_json(path, "init_from", ring.warm_start.to_json())
    checkpointer = Checkpointer(
        directory, keep=config.checkpoint.keep, start_thread=start_daemon, check=lock.verify
    )
    if resumed is not None:
        checkpointer.discard_after(resumed.num_cycles)
    fan_out = MetricsFanOut(
        _writers(config, path, on_message, resume_env_steps=env_steps),
        on_warning=on_message,
        check=lock.check_owner,
    )
    return Outputs(
        fan_out=fan_out,
        autosave=Autosave(
            ring,
            checkpointer,
            interval_s=config.checkpoint.interval_s,
            on_warning=on_message,
        ),
        evaluation=_periodic_evaluation(
            ring, config, path, fan_out, on_message, on_evaluation, resume_env_steps=env_steps
        ),
        profiler=_profiler(ring, config, own, on_message),
        lock=lock,
    )


def _profiler(
    ring: Ring, config: Config, own: pathlib.Path, on_message: Callable[[str], None]
) -> Profiler | None:
    if config.run.profile is None:
        return None
    return Profiler(
        config.run.profile,
        own / PROFILE,
        num_cycles=lambda: ring.learner.num_cycles,
        on_message=on_message,
    )


def _periodic_evaluation(
    ring: Ring,
    config: Config,
    path: pathlib.Path,
    fan_out: MetricsFanOut,
    on_message: Callable[[str], None],
    on_evaluation: Callable[[Row], None],
    *,
    resume_env_steps: int | None,
) -> PeriodicEvaluation | None:
    settings = config.evaluation
    if settings.interval_env_steps is None or not hosts.is_first():
        return None
    videos, env = None, config.env
    if settings.video is not None:
        videos, env = EvaluationVideos(run_dir=path, format=settings.video), with_rendering(env)
        videos.check(env)
    plan = EvaluationPlan(
        env=env,
        episodes=settings.episodes,
        num_envs=settings.parallel_envs,
        max_episode_steps=settings.max_episode_steps,
        greedy=settings.greedy,
        seed=config.seed,
    )
    file = JsonlWriter(path / EVALUATIONS, resume_env_steps=resume_env_steps, on_warning=on_message)
    return PeriodicEvaluation(
        ring,
        Evaluator(
            ring.agent,
            plan,
            device=ring.actor_devices[0],
            num_training_envs=config.actor.num_envs * len(ring.actors) * hosts.place()[1],
            env_timeout_s=config.actor.env_timeout_s,
        ),
        interval_env_steps=settings.interval_env_steps,
        stop_on_error=settings.stop_on_error,
        writer=EvaluationWriter(file, fan_out.put, on_evaluation),
        on_message=on_message,
        videos=videos,
    )


def _writers(
    config: Config,
    path: pathlib.Path,
    on_message: Callable[[str], None],
    *,
    resume_env_steps: int | None,
) -> list[MetricsWriter]:
    if not hosts.is_first():
        return []
    writers: list[MetricsWriter] = [
        writer(path / name, resume_env_steps=resume_env_steps, on_warning=on_message)
        for writer, name in ((JsonlWriter, "metrics.jsonl"), (CsvWriter, "metrics.csv"))
    ]
    writers += [
        TensorBoardWriter(
            path, resume_env_steps=resume_env_steps, hyper_parameters=flat_config(config)
        ),
    ]
    if config.run.wandb_project is not None:
        project, settings = config.run.wandb_project, dataclasses.asdict(config)
        writers.append(WandbWriter(path, project=project, name=path.name, config=settings))
    return writers
