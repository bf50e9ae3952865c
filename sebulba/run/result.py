"""What `sebulba.train` returns, and what it raises."""

import base64
import dataclasses
import functools
import html
import importlib.util
import json
import math
import os
import pathlib
import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import jax

from sebulba.devices.learner_devices import fetch_replicated
from sebulba.evaluation.playing import record
from sebulba.evaluation.policy import Policy
from sebulba.evaluation.stored import StoredPolicy
from sebulba.evaluation.video import Video
from sebulba.figures.curves import check_columns, group_runs
from sebulba.figures.drawing import check_matplotlib, draw, png_of
from sebulba.process import EXIT_DONE, EXIT_FAILED, EXIT_SIGNAL_BASE
from sebulba.run.ending import Finished, exit_code_of
from sebulba.run.last_lines import describe_checkpoint, describe_failure, describe_unsaved
from sebulba.storage.metrics.base import Row
from sebulba.storage.names import EVALUATIONS, METRICS, VIDEOS
from sebulba.storage.run_dir import shown_path
from sebulba.storage.run_files import read_run
from sebulba.toolkit.past_play import player_of
from sebulba.types import Networks

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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

    def plot(
        self, y: str | Sequence[str] = "episode_return_mean", x: str = "env_steps"
    ) -> "Figure":
        """Draw curves of the run; a notebook shows the figure.

        Args:
            y: columns of `metrics.jsonl`, one panel each.
            x: the column to draw them over.

        Raises:
            ConfigError: matplotlib is not installed, or the run has no such column.
        """
        check_matplotlib()
        run = read_run(self.run_dir)
        columns = [y] if isinstance(y, str) else list(y)
        check_columns([run], [x, *columns])
        figure = draw(group_runs([run]), [(x, column) for column in columns], has_legend=False)
        # IPython asks an object how to show it. It has a rule for figures only once pyplot is used.
        figure._repr_png_ = functools.partial(png_of, figure)  # type: ignore[attr-defined]
        return figure

    def video(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        episodes: int = 1,
        fps: float = 25,
        seed: int | None = None,
        greedy: bool | None = None,
    ) -> Video:
        """Play episodes with the policy, and record them; a notebook shows the video.

        Args:
            path: file to write or overwrite, `.gif` or `.mp4`; None: `videos/result.gif` in the run
                directory.
            episodes: number of episodes, played one after another.
            fps: frames per second.
            seed: seed of the environment and of sampled actions; None: the run's.
            greedy: whether to take the mode of the policy. False: sample, as in training. None: as
                `evaluation.greedy` of the run says.

        Returns:
            The video, which is a path.

        Raises:
            ConfigError: the environment cannot be rendered, or the format needs another package.
        """
        file = self.run_dir / VIDEOS / "result.gif" if path is None else pathlib.Path(path)
        return record(
            self.policy.stored, file, episodes=episodes, fps=fps, seed=seed, greedy=greedy
        )

    def __repr__(self) -> str:
        mean = _number(self.episode_return_mean)
        return (
            f"Result(status={self.status!r}, episode_return_mean={mean},"
            f" env_steps={self.env_steps}, run_dir={shown_path(self.run_dir)!r})"
        )

    def _repr_html_(self) -> str:
        """Return a table of the results, and the curve of returns if matplotlib is installed."""
        config = self.policy.stored.config
        title = f"{config.agent.name} on {config.env.suite} {config.env.id}: {self.status}"
        mean, best = _number(self.episode_return_mean), _number(self.best_episode_return_mean)
        returns = f"{mean}, best {best}"
        if config.run.stop_at_return is not None:
            returns += f", goal {_number(config.run.stop_at_return)}"
        startup_s = self.summary["startup_s"]
        startup = "" if startup_s is None else f" (start-up and compilation: {startup_s:,.1f} s)"
        cells = {
            f"return, mean of {config.run.return_window} episodes": returns,
            "env steps": f"{self.env_steps:,}",
            "env steps/s": _number(self.summary["steps_per_second"], digits=0),
            "wall time": f"{self.summary['wall_time_s']:,.1f} s{startup}",
            "run directory": shown_path(self.run_dir),
        }
        rows = "".join(
            f"<tr><th style='text-align: left'>{html.escape(name)}</th>"
            f"<td style='text-align: left'>{html.escape(text)}</td></tr>"
            for name, text in cells.items()
        )
        table = f"<table><caption><b>{html.escape(title)}</b></caption>{rows}</table>"
        if importlib.util.find_spec("matplotlib") is None:
            return table
        data = base64.b64encode(png_of(self.plot())).decode()
        return f"{table}<img alt='mean return' width='460' src='data:image/png;base64,{data}'>"


class TrainingError(RuntimeError):
    """A run failed; `__cause__` is the error that ended it.

    Attributes:
        exit_code: with which the command line would have ended, as `sebulba.process` explains.
        result: the result until then; None: the run could not begin.
    """

    def __init__(self, message: str, *, exit_code: int, result: Result | None):
        self.exit_code = exit_code
        self.result = result
        super().__init__(message)


class TrainingInterrupted(KeyboardInterrupt):
    """A signal, such as that of Ctrl-C, ended a run, which is saved.

    Attributes:
        exit_code: 128 + the number of the signal.
        result: the result until then; None: the run could not begin.
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
        message = describe_failure(
            end.failure, path, unsaved=end.unsaved, resumed_at=finished.resumed_at
        )
    if ring.end.is_stuck or ring.end.is_closing:
        message += " Threads of the run cannot be ended: end this process before another run."
    message = message.removeprefix("sebulba: ")
    raise TrainingError(message, exit_code=code, result=result) from end.failure


def error_before_start(error: Exception, path: pathlib.Path, *, is_resume: bool) -> TrainingError:
    """Return the error of a run that could not begin in a run directory."""
    message = describe_failure(error, path, resumed_at=math.inf if is_resume else None)
    message = message.removeprefix("sebulba: ")
    return TrainingError(message, exit_code=EXIT_FAILED, result=None)


def _result(finished: Finished) -> Result:
    ring, summary = finished.ring, finished.summary
    learner, device = ring.learner, ring.actors[0].device
    agent, acting = player_of(ring.programs.agent, learner.networks_on(device))
    policy = StoredPolicy(
        config=finished.config,
        agent=agent,
        environment=ring.actors[0].collector.spec,
        networks=acting,
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


def _number(value: float | None, *, digits: int | None = None) -> str:
    if value is None:
        return "unknown"
    return f"{value:.5g}" if digits is None else f"{value:,.{digits}f}"


def _read_rows(path: pathlib.Path) -> list[Row]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
