"""The observers of a run, in their order: who looks at each learner cycle, and writes what."""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Sequence

from sebulba.config import Config
from sebulba.config.schema import changed_settings, flat_config
from sebulba.evaluation.episodes import EvaluationPlan, Evaluator
from sebulba.evaluation.rendering import with_rendering
from sebulba.hosts import connection as hosts
from sebulba.hosts.agreement import Agreement
from sebulba.process import start_daemon
from sebulba.ring.ring import Observer, Ring
from sebulba.ring.run_end import RunEnd
from sebulba.run.all_reduce import AllReduceProbe
from sebulba.run.autosave import Autosave
from sebulba.run.callbacks import Callback, Callbacks
from sebulba.run.checksums import ChecksumRows
from sebulba.run.periodic_evaluation import EvaluationVideos, PeriodicEvaluation
from sebulba.run.profile import Profiler
from sebulba.run.replicas import ReplicaCheck
from sebulba.run.resume import Resumed
from sebulba.run.rows import MetricsRows
from sebulba.run.short_episodes import ShortEpisodes
from sebulba.run.slow_compilation import slow_compilation_of
from sebulba.run.watchdog import Timeouts, watchdog_of
from sebulba.storage.checkpoints.checkpointer import Checkpointer
from sebulba.storage.lock import RunLock
from sebulba.storage.metrics.base import MetricsWriter, Row
from sebulba.storage.metrics.console import Display
from sebulba.storage.metrics.csv import CsvWriter
from sebulba.storage.metrics.jsonl import JsonlWriter, remove_rows_after
from sebulba.storage.metrics.tensorboard import TensorBoardWriter
from sebulba.storage.metrics.wandb import WandbWriter
from sebulba.storage.metrics.writers import MetricsFanOut
from sebulba.storage.names import (
    CHECKPOINTS,
    CHECKSUMS,
    EVALUATIONS,
    METRICS,
    METRICS_TABLE,
    PROFILE,
)
from sebulba.storage.run_dir import directory_of_host, set_aside_later


class LockWatch(Observer):
    """Ends the run once its directory is gone or another run's."""

    def __init__(self, lock: RunLock):
        self._lock = lock

    def on_poll(self) -> None:
        """Raise what the lock's own thread has found.

        Raises:
            RunDirectoryError: nothing can be saved any more.
        """
        self._lock.raise_if_lost()

    def close(self, end: RunEnd) -> None:
        """Look once more, before the run is saved.

        Raises:
            RunDirectoryError: nothing can be saved.
        """
        self._lock.verify()


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class RunObservers:
    """The observers of a run, and those among them that its end asks."""

    in_order: tuple[Observer, ...]
    rows: MetricsRows
    callers: Callbacks


def make_observers(
    ring: Ring,
    config: Config,
    *,
    path: pathlib.Path,
    lock: RunLock,
    agreement: Agreement,
    display: Display,
    callbacks: Sequence[Callback],
    resumed: Resumed | None,
) -> RunObservers:
    """Open the run's files, and return its observers in their order.

    Nothing of an earlier run is moved or removed before all that may refuse the run has been
    checked.

    `on_cycle` and `on_poll` are called in this order, `close` in the reverse order: the run is
    saved before its last networks are evaluated, and files are closed after that.

    Args:
        ring: a new or a restored one.
        config: the run's settings.
        path: the run directory.
        lock: the lock of this host's part of the run directory.
        agreement: the decisions of all hosts.
        display: takes rows and lines of text.
        callbacks: the user's functions.
        resumed: the checkpoint that the run resumes from; its unfinished row is continued, and
            later checkpoints and rows are set aside.

    Raises:
        ConfigError: evaluations cannot be recorded, or a package is missing.
        OSError: there is no space to set the later checkpoints aside; the run is as it was.
    """
    own, is_first = directory_of_host(path), hosts.is_first()
    env_steps = None if resumed is None else resumed.env_steps
    evaluates = config.evaluation.interval_env_steps is not None and is_first
    videos = _videos(config, path) if evaluates else None
    services = _services(config, path) if is_first else []
    if resumed is not None:
        set_aside_later(own, resumed.num_cycles, display.message)
    callers = Callbacks(callbacks, ring.end, on_warning=display.message)
    all_reduce = AllReduceProbe(
        ring.learner,
        dtype=config.learner.gradients,
        is_lock_step=config.policy_lag == 0,
    )
    files = MetricsFanOut(
        _writers(config, path, display, resume_env_steps=env_steps) if is_first else [],
        on_warning=display.message,
        services=services,
        check=lock.check,
    )
    for queue in files.queues:
        start_daemon(queue.run, f"writer {queue.name}")
    listeners: list[Callable[[Row], None]] = [functools.partial(callers.add, "metrics")]
    if is_first:
        listeners.append(display.update)
    rows = MetricsRows(
        ring,
        interval_env_steps=config.run.log_interval_env_steps,
        episode_metrics=ring.programs.episode_metrics,
        all_reduce=all_reduce,
        files=files,
        listeners=listeners,
    )
    checkpointer = Checkpointer(
        own / CHECKPOINTS,
        keep=config.checkpoint.keep,
        # A host may die in a save that the others complete: all keep the one before.
        keep_also=lambda: agreement.saved_by_all,
        start_thread=start_daemon,
        check=lock.verify,
        resumed_from=0 if resumed is None else resumed.num_cycles,
    )
    if resumed is not None:
        rows.restore(resumed.row)
        # Also where this run writes none: rows of another continuation are not those of this one.
        for name in (CHECKSUMS, EVALUATIONS) if is_first else ():
            remove_rows_after(path / name, resumed.env_steps, on_warning=display.message)

    observers: list[Observer] = [callers, rows]
    if is_first:
        observers.append(ShortEpisodes(on_message=display.message))
        observers.append(slow_compilation_of(ring, on_message=display.message))
    if evaluates:
        observers.append(
            _periodic_evaluation(
                ring, config, path, files, callers, display, videos, resume_env_steps=env_steps
            )
        )
    observers += [ReplicaCheck(ring.learner), all_reduce]
    if config.run.checksums and is_first:
        observers.append(
            ChecksumRows(
                ring,
                path / CHECKSUMS,
                resume_env_steps=env_steps,
                check=lock.check,
                on_warning=display.message,
            )
        )
    if config.run.profile is not None:
        observers.append(
            Profiler(
                config.run.profile,
                own / PROFILE,
                num_cycles=ring.learner.num_cycles,
                on_message=display.message,
            )
        )
    observers.append(
        Autosave(
            ring,
            checkpointer,
            rows=rows,
            agreement=agreement,
            interval_s=config.checkpoint.interval_s,
            has_fixed_resets=config.checkpoint.exact_reset_cycles is not None,
            on_warning=display.message,
        )
    )
    observers.append(LockWatch(lock))
    if config.run.mode != "serial":  # A debugger may hold that one anywhere.
        timeouts = Timeouts(
            env_s=config.actor.env_timeout_s,
            update_s=config.learner.update_timeout_s,
            compile_s=config.run.compile_timeout_s,
        )
        observers.append(watchdog_of(ring, timeouts))
    return RunObservers(in_order=tuple(observers), rows=rows, callers=callers)


def _writers(
    config: Config, path: pathlib.Path, display: Display, *, resume_env_steps: int | None
) -> list[MetricsWriter]:
    writers: list[MetricsWriter] = [
        writer(path / name, resume_env_steps=resume_env_steps, on_warning=display.message)
        for writer, name in ((JsonlWriter, METRICS), (CsvWriter, METRICS_TABLE))
    ]
    writers.append(
        TensorBoardWriter(
            path,
            resume_env_steps=resume_env_steps,
            # The changed ones first: TensorBoard's table has their columns on the left.
            hyper_parameters=changed_settings(config) | flat_config(config),
        )
    )
    return writers


def _services(config: Config, path: pathlib.Path) -> list[MetricsWriter]:
    if config.run.wandb_project is None:
        return []
    settings = dataclasses.asdict(config)
    del settings["open_defaults"]
    return [WandbWriter(path, project=config.run.wandb_project, name=path.name, config=settings)]


def _videos(config: Config, path: pathlib.Path) -> EvaluationVideos | None:
    if config.evaluation.video is None:
        return None
    videos = EvaluationVideos(run_dir=path, format=config.evaluation.video)
    videos.check(with_rendering(config.env))
    return videos


def _periodic_evaluation(
    ring: Ring,
    config: Config,
    path: pathlib.Path,
    files: MetricsFanOut,
    callers: Callbacks,
    display: Display,
    videos: EvaluationVideos | None,
    *,
    resume_env_steps: int | None,
) -> PeriodicEvaluation:
    settings = config.evaluation
    assert settings.interval_env_steps is not None
    plan = EvaluationPlan(
        env=config.env if videos is None else with_rendering(config.env),
        episodes=settings.episodes,
        num_envs=settings.parallel_envs,
        max_episode_steps=settings.max_episode_steps,
        greedy=settings.greedy,
        seed=config.seed,
    )
    evaluator = Evaluator(
        ring.programs.agent,
        plan,
        device=ring.actors[0].device,
        num_training_envs=ring.programs.run_spec.num_streams_of_all_hosts,
        env_timeout_s=config.actor.env_timeout_s,
        close_timeout_s=config.run.close_timeout_s,
    )
    return PeriodicEvaluation(
        ring,
        evaluator,
        interval_env_steps=settings.interval_env_steps,
        stop_on_error=settings.stop_on_error,
        file=JsonlWriter(
            path / EVALUATIONS, resume_env_steps=resume_env_steps, on_warning=display.message
        ),
        listeners=[functools.partial(callers.add, "evaluation")],
        log_row=files.put,
        on_message=display.message,
        videos=videos,
    )
