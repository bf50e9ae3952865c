"""Training as a function of Python: `sebulba.train`."""

import dataclasses
import json
import os
import pathlib
import signal
from collections.abc import Sequence
from typing import Any, Literal

import jax

from sebulba.config import Config
from sebulba.config.loading import load_config
from sebulba.config.objects import with_agent, with_environment
from sebulba.config.validation import validate
from sebulba.devices.learner_devices import fetch_replicated
from sebulba.errors import ConfigError
from sebulba.evaluation.policy import Policy
from sebulba.evaluation.stored import StoredPolicy
from sebulba.process import EXIT_DONE, EXIT_SIGNAL_BASE, program
from sebulba.run.assembly import Ring
from sebulba.run.callbacks import Callback, Callbacks
from sebulba.run.endings import (
    describe_checkpoint,
    describe_failure,
    describe_unsaved,
    exit_code_of,
    summarize,
)
from sebulba.run.lifecycle import EndedRun, run_to_end
from sebulba.run.supervision import StuckError
from sebulba.storage.metrics.base import Row
from sebulba.storage.metrics.console import LogDisplay
from sebulba.storage.run_dir import EVALUATIONS, METRICS, resume_command
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
        result: of the run until then; None: it failed before its first cycle.
    """

    def __init__(self, message: str, *, exit_code: int, result: Result | None):
        self.exit_code = exit_code
        self.result = result
        super().__init__(message)


class TrainingInterrupted(KeyboardInterrupt):
    """A signal, such as that of Ctrl-C, ended a run, which is saved.

    Attributes:
        exit_code: 128 + the number of the signal.
        result: of the run until then; None: it had not begun.
    """

    def __init__(self, message: str, *, exit_code: int, result: Result | None):
        self.exit_code = exit_code
        self.result = result
        super().__init__(message)


def train(
    config: Config | str | os.PathLike[str],
    *,
    agent: Any = None,
    environment: Any = None,
    callbacks: Callback | Sequence[Callback] = (),
    verbose: bool = False,
) -> Result:
    """Train, and return what was learned.

    Writes the same run directory as the command line, and can be called again in the same process.
    In the main thread, a stop signal ends the run, which is saved; a second one ends the process.
    Other threads receive no signals. Afterwards the handlers are as before, and no thread is left.

    Args:
        config: from `sebulba.load_config`, or what it takes: a file, or the name of a config that
            comes with Sebulba.
        agent: instead of `agent.name`: a class or function `(settings, run_spec) -> Agent`, or an
            `Agent`. Its settings are `config.agent` if that is of the agent's dataclass `Config`,
            else the defaults of that.
        environment: instead of `env.suite` and `env.id`: a subclass of `gymnasium.Env` or a
            function that returns one, a JAX task, or an adapter's function.
        callbacks: functions `(event, row) -> bool | None`, called in this thread with each row of
            metrics and each evaluation. If one returns True, the run ends.
        verbose: show progress on stderr, as the command line does. Otherwise nothing is printed,
            and lines of text go to the logger `sebulba` as INFO.

    Raises:
        ConfigError: the config is wrong, or does not fit the devices, the environment or the agent.
        CheckpointError: `resume` names a checkpoint that cannot be used.
        TrainingError: the run failed later; it can be resumed.
        TrainingInterrupted: a signal ended the run; a `KeyboardInterrupt`.
        Exception: what a callback raised.
    """
    config = config if isinstance(config, Config) else load_config(config)
    config = config if agent is None else with_agent(config, agent)
    config = config if environment is None else with_environment(config, environment)
    validate(config)
    if config.distributed.effective_mode != "off":
        raise ConfigError(
            f"distributed.mode: expected off, got {config.distributed.effective_mode}; on several"
            f" hosts, start `{program('train')}` on each: a failed host has to end its process"
        )
    called = Callbacks([callbacks] if callable(callbacks) else callbacks)
    ended = run_to_end(config, display=None if verbose else LogDisplay(), callbacks=called)
    if called.failure is not None and ended.run_end.failure is called.failure:
        raise called.failure
    result = None if ended.ring is None else _result(ended, ended.ring)
    _raise_failure(ended, result)
    assert result is not None
    return result


def _raise_failure(ended: EndedRun, result: Result | None) -> None:
    run_end, failure = ended.run_end, ended.run_end.failure
    code = exit_code_of(run_end)
    if code == EXIT_DONE:
        return
    if code > EXIT_SIGNAL_BASE:
        name = signal.Signals(code - EXIT_SIGNAL_BASE).name
        raise TrainingInterrupted(
            f"stopped by {name}. Results so far: {ended.path}. {describe_checkpoint(ended.path)}",
            exit_code=code,
            result=result,
        ) from failure
    if failure is None:
        message = describe_unsaved(run_end, ended.path)
    else:
        message = describe_failure(failure, ended.path, unsaved=run_end.unsaved)
    if isinstance(failure, StuckError):
        message += " Threads of the run cannot be ended: end this process before another run."
    message = message.removeprefix("sebulba: ")
    raise TrainingError(message, exit_code=code, result=result) from failure


def _result(ended: EndedRun, ring: Ring) -> Result:
    learner, device = ring.learner, ring.actor_devices[0]
    summary = summarize(ring, resume_command=resume_command(ended.path))
    policy = StoredPolicy(
        config=ended.config,
        agent=ring.agent,
        environment=ring.environments[0].spec,
        networks=learner.networks_on(device),
        device=device,
        learner_cycle=learner.num_cycles,
        env_steps=ring.progress.env_steps,
        updates=ring.progress.updates,
    )
    networks = None
    if learner.is_between_cycles:
        # A copy: the learner's own may be the arrays of several devices.
        networks = jax.device_put(fetch_replicated(learner.state.networks, device), device)
    return Result(
        status=ring.run_end.status,
        run_dir=ended.path,
        env_steps=ring.progress.env_steps,
        updates=ring.progress.updates,
        episode_return_mean=summary["final_episode_return_mean"],
        best_episode_return_mean=summary["best_episode_return_mean"],
        summary=summary,
        networks=networks,
        policy=Policy(policy, greedy=True, seed=ended.config.seed),
    )


def _read_rows(path: pathlib.Path) -> list[Row]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
