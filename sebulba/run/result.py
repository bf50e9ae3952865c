"""What `sebulba.train` returns, and what it raises."""

import dataclasses
import json
import pathlib
import signal
from typing import Any, Literal

import jax

from sebulba.config import Config
from sebulba.devices.learner_devices import fetch_replicated
from sebulba.evaluation.policy import Policy
from sebulba.evaluation.stored import StoredPolicy
from sebulba.process import EXIT_DONE, EXIT_FAILED, EXIT_SIGNAL_BASE
from sebulba.run.ending import (
    Finished,
    describe_checkpoint,
    describe_failure,
    describe_unsaved,
    exit_code_of,
)
from sebulba.run.training import with_absolute_run_dir
from sebulba.storage.metrics.base import Row
from sebulba.storage.run_dir import EVALUATIONS, METRICS
from sebulba.types import Networks


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Result:
    """What a run of `sebulba.train` has learned."""

    status: Literal["done", "interrupted", "failed", "unsaved"]
    run_dir: pathlib.Path
    env_steps: int  # learned from
    updates: int
    episode_return_mean: float | None  # of the last `run.return_window` episodes; None: too few
    best_episode_return_mean: float | None
    summary: dict[str, Any]  # the contents of `summary.json`
    networks: Networks | None  # on the first actor device; None: the run failed within a cycle
    policy: Policy  # with the newest published networks, greedy

    @property
    def rows(self) -> list[Row]:
        """The rows of `metrics.jsonl`, also those before a resume."""
        return _read_rows(self.run_dir / METRICS)

    @property
    def evaluations(self) -> list[Row]:
        """The rows of `evaluations.jsonl`; empty without `evaluation.interval_env_steps`."""
        return _read_rows(self.run_dir / EVALUATIONS)

    def __repr__(self) -> str:
        mean = self.episode_return_mean
        shown = "unknown" if mean is None else f"{mean:.5g}"
        return (
            f"Result(status={self.status!r}, episode_return_mean={shown},"
            f" env_steps={self.env_steps}, run_dir={str(self.run_dir)!r})"
        )


class TrainingError(RuntimeError):
    """A run failed; `__cause__` is the error that ended it.

    Attributes:
        exit_code: with which the command line would have ended, as `sebulba.process` explains.
        result: what the run had learned until then; None: it could not begin.
    """

    def __init__(self, message: str, *, exit_code: int, result: Result | None):
        self.exit_code = exit_code
        self.result = result
        super().__init__(message)


class TrainingInterrupted(KeyboardInterrupt):
    """A signal, such as that of Ctrl-C, ended a run, which is saved.

    Attributes:
        exit_code: 128 + the number of the signal.
        result: what the run had learned until then; None: it could not begin.
    """

    def __init__(self, message: str, *, exit_code: int, result: Result | None):
        self.exit_code = exit_code
        self.result = result
        super().__init__(message)


def result_of(finished: Finished) -> Result:
    """Return the result of a run that is done.

    Raises:
        TrainingError: the run failed.
        TrainingInterrupted: a signal ended it.
    """
    ring, end, path = finished.ring, finished.end, finished.path
    result = _result(finished)
    code = exit_code_of(end)
    if code == EXIT_DONE:
        return result
    if code > EXIT_SIGNAL_BASE:
        name = signal.Signals(code - EXIT_SIGNAL_BASE).name
        raise TrainingInterrupted(
            f"stopped by {name}. Results so far: {path}. {describe_checkpoint(path)}",
            exit_code=code,
            result=result,
        ) from end.failure
    if end.failure is None:
        message = describe_unsaved(end, path)
    else:
        message = describe_failure(end.failure, path, unsaved=end.unsaved)
    if ring.end.is_stuck:
        message += " Threads of the run cannot be ended: end this process before another run."
    message = message.removeprefix("sebulba: ")
    raise TrainingError(message, exit_code=code, result=result) from end.failure


def error_before_start(error: Exception, config: Config) -> TrainingError:
    """Return the error of a run that could not begin."""
    path = pathlib.Path(with_absolute_run_dir(config).run_dir or "")
    message = describe_failure(error, path).removeprefix("sebulba: ")
    return TrainingError(message, exit_code=EXIT_FAILED, result=None)


def _result(finished: Finished) -> Result:
    ring, summary = finished.ring, finished.summary
    learner, device = ring.learner, ring.actors[0].device
    policy = StoredPolicy(
        config=finished.config,
        agent=ring.agent,
        environment=ring.actors[0].environments.spec,
        networks=learner.networks_on(device),
        device=device,
        learner_cycle=learner.num_cycles,
        env_steps=ring.progress.env_steps,
        updates=ring.progress.updates,
    )
    networks = None
    if ring.is_between_cycles:
        # A copy: the learner's own may be the arrays of several devices.
        networks = jax.device_put(fetch_replicated(learner.state.networks, device), device)
    return Result(
        status=finished.end.status,
        run_dir=finished.path,
        env_steps=ring.progress.env_steps,
        updates=ring.progress.updates,
        episode_return_mean=summary["final_episode_return_mean"],
        best_episode_return_mean=summary["best_episode_return_mean"],
        summary=summary,
        networks=networks,
        policy=Policy(policy, greedy=True, seed=finished.config.seed),
    )


def _read_rows(path: pathlib.Path) -> list[Row]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
