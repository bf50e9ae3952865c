"""Evaluates published networks during training, without touching anything that trains."""

import collections
import dataclasses
import time
from collections.abc import Callable, Sequence

from sebulba.errors import PLACE
from sebulba.evaluation.episodes import Evaluation, Evaluator
from sebulba.evaluation.protocol import describe_protocol
from sebulba.evaluation.statistics import summarize
from sebulba.ring.run_end import RunEnd
from sebulba.run.assembly import Ring
from sebulba.run.evaluation_outputs import EvaluationVideos
from sebulba.storage.metrics.base import MetricsWriter, Row
from sebulba.types import Networks, TrajectoryItem

_SLICE_S = 0.5  # between two slices the supervisor watches the other threads


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _Candidate:
    """Networks that a learner cycle published; nothing donates or writes to them."""

    networks: Networks
    learner_cycle: int
    env_steps: int
    updates: int


class PeriodicEvaluation:
    """Evaluates at intervals, in the supervisor's thread.

    The learner's thread calls `after_cycle`, which keeps a reference to the networks when an
    evaluation is due. Whoever calls `poll` (half a second at a time) and `finish` plays the
    episodes. While one evaluation runs, only the newest pending networks are kept. After a failed
    evaluation training continues, and the next networks are tried; a repeated failure is reported
    only after a successful evaluation.
    """

    def __init__(
        self,
        ring: Ring,
        evaluator: Evaluator,
        *,
        interval_env_steps: int,
        stop_on_error: bool,
        writer: MetricsWriter,
        on_message: Callable[[str], None],
        videos: EvaluationVideos | None = None,
        now: Callable[[], float] = time.perf_counter,
    ):
        """Start at the ring's current cycle.

        Args:
            ring: a new or restored one.
            evaluator: on the device of the ring's first actor.
            interval_env_steps: env steps learned from between two evaluations.
            stop_on_error: whether `poll` and `finish` raise the error of a failed evaluation.
            writer: takes a row for each evaluation, in the supervisor's thread; `close` closes it.
            on_message: takes a line of text about each evaluation.
            videos: writes a video of each evaluation; None: none is recorded.
            now: seconds.
        """
        self._ring = ring
        self._videos = videos
        self._evaluator = evaluator
        self._interval_env_steps = interval_env_steps
        self._stop_on_error = stop_on_error
        self._writer = writer
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

    def after_cycle(self, items: Sequence[TrajectoryItem]) -> None:
        """Keep the networks of the completed learner cycle if an evaluation is due."""
        del items
        intervals = self._ring.progress.env_steps // self._interval_env_steps
        if intervals > self._intervals:
            self._intervals = intervals
            self._due.append(self._newest())

    def poll(self) -> None:
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

    def finish(self, run_end: RunEnd) -> None:
        """Complete the current evaluation and evaluate the last networks, after training.

        A signal drops what is left.

        Raises:
            Exception: as `poll`.
        """
        self._due.clear()
        while self._candidate is not None and not run_end.is_interrupted:
            self.poll()
        if self._last_cycle != self._ring.learner.num_cycles:
            self._due.append(self._newest())
        while (self._candidate is not None or self._due) and not run_end.is_interrupted:
            self.poll()

    def close(self) -> None:
        """Drop the current evaluation and close the file; may be called twice."""
        self._end()
        self._writer.close()

    def _newest(self) -> _Candidate:
        learner, progress = self._ring.learner, self._ring.progress
        return _Candidate(
            networks=learner.networks_on(self._ring.actor_devices[0]),
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
        self._writer.write(row)
        self._on_message(describe_row(row))

    def _end(self) -> None:
        evaluation, self._evaluation = self._evaluation, None
        self._candidate, self._seconds = None, 0.0
        if evaluation is not None:
            evaluation.close()


def describe_row(row: Row) -> str:
    """Return a row of evaluation as a line of text."""
    left = row["episodes_unfinished"]
    unfinished = (
        f"; {left} episodes not finished within evaluation.max_episode_steps" if left else ""
    )
    if not row["episodes"]:
        return f"evaluation at {row['env_steps']:,} env steps: no episode finished{unfinished}"
    return (
        f"evaluation at {row['env_steps']:,} env steps: return {row['return_mean']:,.2f}, IQM"
        f" {row['return_iqm']:,.2f} [{row['return_iqm_low']:,.2f}, {row['return_iqm_high']:,.2f}],"
        f" of {row['episodes']} episodes{unfinished}"
    )
