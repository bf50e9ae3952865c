"""Rows of metrics: what is counted between two of them, and who is given them."""

import collections
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sebulba.ring.clocks import Shares, TimeShares
from sebulba.ring.progress import Progress
from sebulba.ring.records import CycleReport
from sebulba.ring.ring import Observer, Ring
from sebulba.ring.run_end import RunEnd
from sebulba.run.all_reduce import AllReduceProbe, AllReduceUse
from sebulba.run.means import MetricMeans
from sebulba.run.remote_actors import Numbers, RemoteActors
from sebulba.storage.metrics.base import Row
from sebulba.storage.metrics.writers import MetricsFanOut

_WRITERS_DEADLINE_S = 2.0
_SERVICES_DEADLINE_S = 10.0  # the first row of a service waits for its import and its connection


class MetricsRows(Observer):
    """Makes a row of metrics at every multiple of an interval of env steps, and at the goal."""

    def __init__(
        self,
        ring: Ring,
        *,
        interval_env_steps: int,
        episode_metrics: Sequence[str],
        all_reduce: AllReduceProbe,
        files: MetricsFanOut,
        listeners: Sequence[Callable[[Row], None]],
    ):
        """Start at the ring's present cycle.

        Args:
            ring: a new or a restored one.
            interval_env_steps: env steps learned from between two rows.
            episode_metrics: names of the metrics per episode, besides return and length.
            all_reduce: measures the all-reduces of the gradients.
            files: receives the rows; `close` closes it.
            listeners: take each row, in the learner's thread; they never wait.
        """
        self._ring = ring
        self._interval_env_steps = interval_env_steps
        self._episode_metrics = tuple(episode_metrics)
        self._files = files
        self._listeners = tuple(listeners)
        progress = ring.progress
        self._intervals = progress.env_steps // interval_env_steps
        self._metrics = MetricMeans()
        self._lags: list[int] = []
        self._shares = TimeShares(ring.clocks)
        self._since: tuple[int, float] | None = None  # env steps and time; None: during start-up
        self._all_reduce = AllReduceUse(all_reduce, progress)
        self._all_reduce_of_run = AllReduceUse(all_reduce, progress)  # without start-up
        self._remote_actors = RemoteActors(ring)
        self._remote_actors_of_run = RemoteActors(ring)  # without start-up

    @property
    def all_reduce(self) -> dict[str, float]:
        """Columns of the gradients' all-reduces, without start-up; empty with one device."""
        return self._all_reduce_of_run.columns()

    @property
    def remote_actors(self) -> dict[int, Numbers]:
        """The numbers of each remote actor, without start-up; empty without any."""
        return self._remote_actors_of_run.numbers()

    @property
    def dropped_rows(self) -> dict[str, int]:
        """The number of rows that a writer dropped, by writer; empty if none did."""
        return self._files.dropped_rows

    def on_cycle(self, report: CycleReport) -> None:
        """Count; hand out a row if one is due or the run has reached its goal."""
        progress = self._ring.progress
        self._lags += report.policy_lags
        self._metrics.add(report.metrics)
        if self._since is None and progress.is_steady:
            self._since = (progress.env_steps, progress.counted_at)
            self._all_reduce_of_run.restart()
            self._remote_actors.restart()
            self._remote_actors_of_run.restart()
        intervals = progress.env_steps // self._interval_env_steps
        if intervals > self._intervals or self._ring.end.goal:
            self._intervals = intervals
            row = self._row(progress, report.queue_depth)
            self._files.put(row)
            for listener in self._listeners:
                listener(row)

    def close(self, end: RunEnd) -> None:
        """Wait for the writers, for a limited time."""
        self._files.close(_WRITERS_DEADLINE_S, _SERVICES_DEADLINE_S)

    def state(self) -> dict[str, Any]:
        """Return the unfinished row for a checkpoint, as JSON values."""
        return {"lags": self._lags.copy(), "metrics": self._metrics.state()}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue an unfinished row."""
        self._lags = list(state["lags"])
        self._metrics.restore(state["metrics"])

    def _row(self, progress: Progress, queue_depth: int) -> Row:
        lag_counts = sorted(collections.Counter(self._lags).items())
        window = progress.window
        row: Row = {
            "env_steps": progress.env_steps,
            "updates": progress.updates,
            "learner_cycles": progress.cycles,
            "non_finite_updates": self._ring.learner.num_non_finite_updates,
            "wall_time_s": progress.wall_time_s,
            "steps_per_second": self._rate(progress),
            "episode_return_mean": window.return_mean,
            "episode_length_mean": window.length_mean,
            "episode_return_last": window.last_return,
            "episodes": window.num_episodes,
            "episodes_cut": progress.episodes_cut,
            "env_restarts": progress.env_restarts,
            "policy_lag_mean": float(np.mean(self._lags)),
            # The number of trajectories with each policy lag, in learner cycles.
            **{f"policy_lag/{lag}": count for lag, count in lag_counts},
            "queue_depth": queue_depth,
            **{f"episode/{name}": window.reduced_mean(name) for name in self._episode_metrics},
            **self._metrics.take(),
            **{f"all_reduce/{name}": value for name, value in self._all_reduce.columns().items()},
            **_flat(self._shares.shares()),
            **{
                f"remote_actor/{actor_id}/{name}": value
                for actor_id, numbers in self._remote_actors.numbers().items()
                for name, value in numbers.items()
            },
        }
        self._shares.restart()
        self._all_reduce.restart()
        self._lags = []
        if self._since is not None:
            self._since = (progress.env_steps, progress.counted_at)
            self._remote_actors.restart()
        return row

    def _rate(self, progress: Progress) -> float | None:
        if self._since is None or progress.env_steps == self._since[0]:
            return None
        env_steps, at = self._since
        return (progress.env_steps - env_steps) / (progress.counted_at - at)


def _flat(shares: Shares) -> dict[str, float]:
    return {
        f"time/{kind}/{activity}": share
        for kind, activities in shares.items()
        for activity, share in activities.items()
    }
