"""The progress of a run: counts, episode statistics, rows of metrics, and the goal."""

import collections
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sebulba.agent import Metrics
from sebulba.config import RunConfig
from sebulba.hosts.agreement import Agreement, TrajectoryReport
from sebulba.learning.all_reduce import AllReduce, AllReduceUse
from sebulba.ring.ledger import Ledger
from sebulba.ring.timing import Shares, TimeShares, WallClock
from sebulba.storage.metrics.base import Row
from sebulba.storage.metrics.episodes import EpisodeWindow
from sebulba.storage.metrics.means import MetricMeans
from sebulba.types import TrajectoryItem


class Progress:
    """Counts what the learner has learned from, and writes rows of metrics.

    Rates exclude start-up and compilation: they start after the first learner cycle at which every
    actor has delivered a trajectory and an update has run.
    """

    def __init__(
        self,
        *,
        config: RunConfig,
        ledger: Ledger,
        agreement: Agreement,
        clocks: Mapping[str, Sequence[WallClock]],
        all_reduce: AllReduce,
        write_row: Callable[[Row], None],
        num_non_finite_updates: Callable[[], int] = lambda: 0,
        now: Callable[[], float] = time.perf_counter,
    ):
        self.env_steps = 0  # of all hosts, like episodes and policy lags
        self.updates = 0
        self.env_restarts = 0  # of this host, like `episodes_cut`
        self.episodes_cut = 0
        self.agreement = agreement
        self._run_end = agreement.run_end
        self.startup_s: float | None = None  # of this process
        self.window = EpisodeWindow(config.return_window)
        self.time_shares = TimeShares(clocks)
        self._config = config
        self._ledger = ledger
        self._row_shares = TimeShares(clocks)
        self._all_reduce = AllReduceUse(all_reduce)
        self._row_all_reduce = AllReduceUse(all_reduce)
        self._write_row = write_row
        self._num_non_finite_updates = num_non_finite_updates
        self._now = now
        self._started_at = now()
        self._earlier_wall_time_s = 0.0
        self._pending_actors = set(range(len(clocks["actor"])))
        self._steady_since: tuple[int, float] | None = None
        self._row_since: tuple[int, float] | None = None
        self._metrics = MetricMeans()
        self._lags: list[int] = []
        self._cycles = 0

    @property
    def steps_per_second(self) -> float | None:
        """Env steps learned from per second, without start-up and compilation."""
        return self._rate(self._steady_since)

    @property
    def wall_time_s(self) -> float:
        """Seconds since this process set the run up, plus those of the runs that it resumes."""
        return self._earlier_wall_time_s + self._now() - self._started_at

    @property
    def all_reduce(self) -> dict[str, float]:
        """Columns of the gradients' all-reduces, without start-up; empty with one device."""
        return self._all_reduce.columns(num_cycles=self._cycles, num_updates=self.updates)

    def record(
        self, items: Sequence[TrajectoryItem], metrics: Sequence[Metrics], *, queue_depth: int
    ) -> None:
        """Record a learner cycle; write a row if one is due or the run is done.

        Args:
            items: the trajectories of the cycle.
            metrics: of the updates, on the devices, with a leading axis of updates.
            queue_depth: trajectories left in the deque.
        """
        rows_before = self.env_steps // self._config.log_interval_env_steps
        for item in items:
            self._ledger.move(item.actor_id, item.env_steps, "in_flight", "learned")
            self._pending_actors.discard(item.actor_id)
            self.env_restarts += item.env_restarts
            self.episodes_cut += item.episodes_cut
        for report in self.agreement.decide([self._report(item) for item in items]):
            self.env_steps += report.env_steps
            self.window.add(report.episodes, num_finished=report.num_episodes)
            self._lags.append(report.policy_lag)
        self._cycles += 1
        self.updates += self._metrics.add(metrics)
        if self._steady_since is None and not self._pending_actors and self.updates:
            self._start_rates()
        self._look_for_goal()
        due = self.env_steps // self._config.log_interval_env_steps > rows_before
        if due or self._run_end.goal:
            self._write_row(self._row(queue_depth))

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint, as JSON values."""
        return {
            "env_steps": self.env_steps,
            "updates": self.updates,
            "cycles": self._cycles,
            "env_restarts": self.env_restarts,
            "episodes_cut": self.episodes_cut,
            "wall_time_s": self.wall_time_s,
            "window": self.window.state(),
            "row": {"lags": self._lags.copy(), "metrics": self._metrics.state()},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Resume from a `state`, including the unfinished row; rates start again."""
        self.env_steps = state["env_steps"]
        self.updates = state["updates"]
        self._cycles = state["cycles"]
        self.env_restarts = state["env_restarts"]
        self.episodes_cut = state["episodes_cut"]
        self._earlier_wall_time_s = state["wall_time_s"]
        self.window.restore(state["window"])
        self._lags = list(state["row"]["lags"])
        self._metrics.restore(state["row"]["metrics"])
        for use in (self._all_reduce, self._row_all_reduce):
            use.restart(num_cycles=self._cycles, num_updates=self.updates)
        self._look_for_goal()

    def _look_for_goal(self) -> None:
        """Ends the run at its goal, which is the same on all hosts after the same cycle."""
        goal = self._config.stop_at_return
        mean = self.window.return_mean
        solved = goal is not None and mean is not None and mean >= goal
        if solved or self.env_steps >= self._config.total_env_steps:
            self._run_end.goal = True

    def _report(self, item: TrajectoryItem) -> TrajectoryReport:
        return TrajectoryReport(
            env_steps=item.env_steps,
            policy_lag=self._cycles - item.policy_version,
            num_episodes=len(item.episodes),
            episodes=item.episodes,
        )

    def _start_rates(self) -> None:
        self.startup_s = self._now() - self._started_at
        self._steady_since = self._row_since = (self.env_steps, self._now())
        self.time_shares.restart()
        self._all_reduce.restart(num_cycles=self._cycles, num_updates=self.updates)

    def _rate(self, since: tuple[int, float] | None) -> float | None:
        if since is None or self.env_steps == since[0]:
            return None
        env_steps, at = since
        return (self.env_steps - env_steps) / (self._now() - at)

    def _row(self, queue_depth: int) -> Row:
        counts = {"num_cycles": self._cycles, "num_updates": self.updates}
        all_reduce = self._row_all_reduce.columns(**counts)
        row: Row = {
            "env_steps": self.env_steps,
            "updates": self.updates,
            "non_finite_updates": self._num_non_finite_updates(),
            "wall_time_s": self.wall_time_s,
            "steps_per_second": self._rate(self._row_since),
            "episode_return_mean": self.window.return_mean,
            "episode_length_mean": self.window.length_mean,
            "episode_return_last": self.window.last_return,
            "episodes": self.window.num_episodes,
            "episodes_cut": self.episodes_cut,
            "env_restarts": self.env_restarts,
            "policy_lag_mean": float(np.mean(self._lags)),
            **_histogram(self._lags),
            "queue_depth": queue_depth,
            **{
                f"episode/{name}": self.window.reduced_mean(name)
                for name in self._config.episode_reducers
            },
            **self._metrics.take(),
            **{f"all_reduce/{name}": value for name, value in all_reduce.items()},
            **_flat(self._row_shares.shares()),
        }
        self._row_shares.restart()
        self._row_all_reduce.restart(**counts)
        self._lags = []
        if self._row_since is not None:
            self._row_since = (self.env_steps, self._now())
        return row


def _histogram(lags: Sequence[int]) -> dict[str, int]:
    """Return the number of trajectories with each policy lag, in learner cycles."""
    return {f"policy_lag/{lag}": count for lag, count in sorted(collections.Counter(lags).items())}


def _flat(shares: Shares) -> dict[str, float]:
    return {
        f"time/{kind}/{activity}": share
        for kind, activities in shares.items()
        for activity, share in activities.items()
    }
