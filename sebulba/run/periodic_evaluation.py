"""Evaluate published networks during training, without touching anything that trains."""

import collections
import contextlib
import dataclasses
import pathlib
import time
from collections.abc import Callable, Sequence

from sebulba.config import EnvConfig
from sebulba.envs import make_environment
from sebulba.envs.base import Environment
from sebulba.errors import PLACE
from sebulba.evaluation.episodes import Evaluation, Evaluator
from sebulba.evaluation.protocol import describe_protocol
from sebulba.evaluation.recording import Recording
from sebulba.evaluation.rendering import check_rendering
from sebulba.evaluation.statistics import summarize
from sebulba.evaluation.video import check_format, write_video
from sebulba.ring.records import CycleReport
from sebulba.ring.ring import Observer, Ring
from sebulba.ring.run_end import RunEnd
from sebulba.storage.metrics.base import REQUIRED_KEYS, VIDEO, MetricsWriter, Row
from sebulba.types import Networks

_OWN_KEYS = ("env_steps", "updates", "wall_time_s")
_MAX_FRAMES = 1_000  # the thread that polls encodes the video, and watches nothing meanwhile
_FPS = 25
_SLICE_S = 0.5  # between two slices the supervisor watches the other threads


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _Candidate:
    """Networks that a learner cycle published; nothing donates or writes to them."""

    networks: Networks
    learner_cycle: int
    env_steps: int
    updates: int


class PeriodicEvaluation(Observer):
    """Evaluates at intervals, in the thread that polls, half a second at a time.

    While one evaluation runs, only the newest pending networks are kept. After a failed evaluation
    training continues, and the next networks are tried; a repeated failure is reported only after a
    successful evaluation.
    """

    def __init__(
        self,
        ring: Ring,
        evaluator: Evaluator,
        *,
        interval_env_steps: int,
        stop_on_error: bool,
        file: MetricsWriter,
        listeners: Sequence[Callable[[Row], None]] = (),
        log_row: Callable[[Row], None] = lambda row: None,
        on_message: Callable[[str], None],
        videos: "EvaluationVideos | None" = None,
        now: Callable[[], float] = time.perf_counter,
    ):
        """Start at the ring's current cycle.

        Args:
            ring: a new or restored one.
            evaluator: on the device of the ring's first actor.
            interval_env_steps: env steps learned from between two evaluations.
            stop_on_error: whether the error of a failed evaluation ends the run.
            file: takes a row for each evaluation; `close` closes it.
            listeners: take the same rows.
            log_row: takes their numbers as a row of metrics.
            on_message: takes a line of text about each evaluation.
            videos: writes a video of each evaluation; None: none is recorded.
            now: seconds.
        """
        self._ring = ring
        self._videos = videos
        self._evaluator = evaluator
        self._interval_env_steps = interval_env_steps
        self._stop_on_error = stop_on_error
        self._file = file
        self._listeners = tuple(listeners)
        self._log_row = log_row
        self._on_message = on_message
        self._now = now
        self._intervals = ring.progress.env_steps // interval_env_steps
        # Handed from the learner's thread to the supervisor's.
        self._due: collections.deque[_Candidate] = collections.deque(maxlen=1)
        self._candidate: _Candidate | None = None
        self._evaluation: Evaluation | None = None
        self._seconds = 0.0  # spent on the current evaluation
        self._last_cycle: int | None = None  # that was evaluated, or is being evaluated
        self._has_warned = False

    def on_cycle(self, report: CycleReport) -> None:
        """Keep the networks of the completed learner cycle if an evaluation is due."""
        intervals = self._ring.progress.env_steps // self._interval_env_steps
        if intervals > self._intervals:
            self._intervals = intervals
            self._due.append(self._newest())

    def on_poll(self) -> None:
        """Play for half a second if there are networks to evaluate.

        Raises:
            Exception: the error of a failed evaluation, if that is to stop the run.
        """
        if self._candidate is None and self._due:
            self._candidate = self._due.popleft()
        if self._candidate is None:
            return
        started = self._now()
        try:
            self._play(self._candidate, until=started + _SLICE_S)
            self._seconds += self._now() - started
            if self._evaluation is not None and self._evaluation.is_done:
                self._report(self._candidate, self._evaluation)
                self._end()
                self._has_warned = False
        except Exception as error:
            candidate = self._candidate
            self._end()
            if self._stop_on_error:
                error.add_note(f"{PLACE} the evaluation of cycle {candidate.learner_cycle}.")
                raise
            if not self._has_warned:
                reason = (str(error) or type(error).__name__).splitlines()[0]
                self._on_message(
                    f"evaluation at {candidate.env_steps:,} env steps failed:"
                    f" {type(error).__name__}: {reason}; training continues"
                )
            self._has_warned = True

    def close(self, end: RunEnd) -> None:
        """After training, complete the current evaluation and evaluate the last networks.

        A signal or a failure drops what is left.

        Raises:
            Exception: as `on_poll`.
        """

        def may_continue() -> bool:
            return end.failure is None and not end.is_interrupted

        try:
            self._due.clear()
            while self._candidate is not None and may_continue():
                self.on_poll()
            if may_continue() and self._last_cycle != self._ring.learner.num_cycles:
                self._due.append(self._newest())
            while (self._candidate is not None or self._due) and may_continue():
                self.on_poll()
        finally:
            self._end()
            self._file.close()

    def _newest(self) -> _Candidate:
        learner, progress = self._ring.learner, self._ring.progress
        return _Candidate(
            networks=learner.networks_on(self._ring.actors[0].device),
            learner_cycle=learner.num_cycles,
            env_steps=progress.env_steps,
            updates=learner.num_updates,
        )

    def _play(self, candidate: _Candidate, *, until: float) -> None:
        if self._evaluation is None:
            self._last_cycle = candidate.learner_cycle
            wrap = {} if self._videos is None else {"wrap": self._videos.wrap}
            self._evaluation = self._evaluator.start(
                candidate.networks, env_steps=candidate.env_steps, **wrap
            )
        is_out_of_time = False
        while not self._evaluation.is_done and not is_out_of_time:
            self._evaluation.advance()
            is_out_of_time = self._now() >= until

    def _report(self, candidate: _Candidate, evaluation: Evaluation) -> None:
        plan, played = self._evaluator.plan, evaluation.result()
        row: Row = {
            "env_steps": candidate.env_steps,
            "updates": candidate.updates,
            "learner_cycle": candidate.learner_cycle,
            "wall_time_s": self._ring.progress.wall_time_s,
            "evaluation_s": self._seconds,
            **summarize(played.records, seed=plan.seed),
            "episodes_unfinished": played.unfinished,
            "protocol": describe_protocol(
                plan,
                settings=evaluation.settings,
                learner_cycle=candidate.learner_cycle,
                env_steps=candidate.env_steps,
                updates=candidate.updates,
            ),
        }
        if self._videos is not None:
            row["video"] = self._videos.save(evaluation.environment, candidate.env_steps)
        self._file.write(row)
        self._log_row(as_metrics(row))
        for listener in self._listeners:
            listener(row)
        self._on_message(describe_row(row))

    def _end(self) -> None:
        evaluation, self._evaluation = self._evaluation, None
        self._candidate, self._seconds = None, 0.0
        for problem in () if evaluation is None else evaluation.close():
            self._ring.end.is_closing = self._ring.end.is_closing or problem.is_running
            self._on_message(f"warning: {problem}")


def describe_row(row: Row) -> str:
    """Return a row of evaluation as a line of text."""
    left = row["episodes_unfinished"]
    unfinished = (
        f"; {left} episodes not finished within evaluation.max_episode_steps" if left else ""
    )
    if not row["episodes"]:
        return f"evaluation at {row['env_steps']:,} env steps: no episode finished{unfinished}"
    actions = "greedy" if row["protocol"]["greedy"] else "sampled"
    return (
        f"evaluation at {row['env_steps']:,} env steps: return of {actions} actions"
        f" {row['return_mean']:,.2f}, IQM {row['return_iqm']:,.2f}"
        f" [{row['return_iqm_low']:,.2f}, {row['return_iqm_high']:,.2f}],"
        f" of {row['episodes']} episodes{unfinished}"
    )


def as_metrics(row: Row) -> Row:
    """Return a row of evaluation as a row of metrics: its numbers as `evaluation/NAME`.

    The keys that every row of metrics has are None, except counts and time.
    """
    numbers = {
        f"evaluation/{key}": value
        for key, value in row.items()
        if key not in _OWN_KEYS and (isinstance(value, float | int) or value is None)
    }
    video = {VIDEO: row["video"]} if "video" in row else {}
    own = {key: row[key] for key in _OWN_KEYS}
    return dict.fromkeys(REQUIRED_KEYS) | own | numbers | video


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationVideos:
    """Files of the first episode of each evaluation, in the run directory."""

    run_dir: pathlib.Path
    format: str  # gif or mp4

    def check(self, env: EnvConfig) -> None:
        """Render a frame, so that a video that is impossible ends the run before it begins.

        Args:
            env: the environment of evaluations, with rendering enabled.

        Raises:
            ConfigError: the environment cannot be rendered, or a package is missing.
        """
        check_format(f"video.{self.format}")
        check_rendering(env)
        environment = make_environment(env, num_envs=1, seed=0)
        with contextlib.closing(environment):
            self.wrap(environment).reset()

    def wrap(self, environment: Environment) -> Environment:
        """Return the environment that records."""
        return Recording(environment, episodes=1, max_frames=_MAX_FRAMES)

    def save(self, environment: Environment, env_steps: int) -> str:
        """Write the video of a recording, and return its name in the run directory.

        Raises:
            OSError: the file could not be written.
        """
        assert isinstance(environment, Recording)
        name = f"videos/{env_steps}.{self.format}"
        (self.run_dir / name).parent.mkdir(exist_ok=True)
        write_video(self.run_dir / name, environment.frames(), fps=_FPS)
        return name
