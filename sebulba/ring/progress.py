"""What was learned, how fast, and whether the goal is reached."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sebulba.config import RunConfig
from sebulba.ring.clocks import TimeShares, WallClock
from sebulba.ring.records import FinishedEpisodes, UnrollInfo
from sebulba.ring.run_end import RunEnd


class EpisodeWindow:
    """The last `size` finished episodes of all actors. Only the learner's thread may use it."""

    def __init__(self, size: int, minimum: int = 20):
        """Start without episodes.

        Args:
            size: number of episodes in the window.
            minimum: number of episodes, at most `size`, that a mean needs.
        """
        if size < 1:
            raise ValueError(f"expected run.return_window of at least 1 episode, got {size}")
        self._size = size
        self._minimum = min(minimum, size)
        self._returns = np.zeros(0)  # [n] float64, n ≤ size, like all that follow
        self._lengths = np.zeros(0, np.int64)
        self._reduced: dict[str, np.ndarray] = {}  # by reducer
        self._has_result: dict[str, np.ndarray] = {}  # bool
        self.return_mean: float | None = None  # over the window; None before `minimum` episodes
        self.num_episodes = 0  # finished, including those that have left the window
        self.best_return_mean: float | None = None  # highest `return_mean` after any `add`

    def add(self, episodes: FinishedEpisodes, *, num_finished: int | None = None) -> None:
        """Add finished episodes, in the order in which they ended.

        Args:
            episodes: in host memory; older ones that do not fit into the window may be missing.
            num_finished: number of episodes, including missing ones; None: none is missing.

        Raises:
            ValueError: episodes are missing that fit into the window.
        """
        num_finished = len(episodes) if num_finished is None else num_finished
        if len(episodes) < min(num_finished, self._size):
            raise ValueError(
                f"expected the last {min(num_finished, self._size)} of {num_finished} episodes for"
                f" a return window of {self._size}, got {len(episodes)}: `max_finished` of the"
                " EpisodeTracker must be at least run.return_window"
            )
        if num_finished == 0:
            return
        self.num_episodes += num_finished
        for name in self._reduced.keys() | episodes.reduced.keys():
            has_none = np.zeros(len(episodes), bool)
            self._reduced[name] = self._last(
                self._reduced.get(name, np.zeros(len(self._returns))),
                episodes.reduced.get(name, has_none),
            )
            self._has_result[name] = self._last(
                self._has_result.get(name, np.zeros(len(self._returns), bool)),
                episodes.has_results if name in episodes.reduced else has_none,
            )
        self._returns = self._last(self._returns, episodes.episode_return)
        self._lengths = self._last(self._lengths, episodes.episode_length)
        self.return_mean = mean = self._mean(self._returns)
        if mean is not None and (self.best_return_mean is None or mean > self.best_return_mean):
            self.best_return_mean = mean

    @property
    def length_mean(self) -> float | None:
        """The mean length in env steps; None until `minimum` episodes have finished."""
        return self._mean(self._lengths)

    def reduced_mean(self, name: str) -> float | None:
        """Return the mean of a custom per-episode metric over the window.

        None until `minimum` episodes have it; an interrupted episode does not.
        """
        if name not in self._reduced:
            return None
        return self._mean(self._reduced[name][self._has_result[name]])

    @property
    def last_return(self) -> float | None:
        """The return of the episode that finished last; None without one."""
        return float(self._returns[-1]) if len(self._returns) else None

    def state(self) -> dict[str, Any]:
        """Return the JSON values that a checkpoint stores."""
        reduced: list[dict[str, float]] = [{} for _ in self._returns]
        for name, results in self._reduced.items():
            for i in np.flatnonzero(self._has_result[name]):
                reduced[i][name] = float(results[i])
        return {
            "returns": self._returns.tolist(),
            "lengths": self._lengths.tolist(),
            "reduced": reduced,
            "num_episodes": self.num_episodes,
            "best_return_mean": self.best_return_mean,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a `state`; a smaller window keeps the newest episodes."""
        self._returns = np.array(state["returns"][-self._size :], float)
        self._lengths = np.array(state["lengths"][-self._size :], np.int64)
        reduced = state["reduced"][-self._size :]
        names = {name for results in reduced for name in results}
        self._reduced = {
            name: np.array([results.get(name, 0.0) for results in reduced], float) for name in names
        }
        self._has_result = {
            name: np.array([name in results for results in reduced], bool) for name in names
        }
        self.return_mean = self._mean(self._returns)
        self.num_episodes = state["num_episodes"]
        self.best_return_mean = state["best_return_mean"]

    def _last(self, before: np.ndarray, new: np.ndarray) -> np.ndarray:
        """Return the last `size` entries of two arrays, with the dtype of the first."""
        kept = before[max(0, len(before) + len(new) - self._size) :]
        return np.concatenate([kept, new[-self._size :]], dtype=before.dtype)

    def _mean(self, values: np.ndarray) -> float | None:
        if len(values) < self._minimum:
            return None
        # Not a running sum, which drifts and never loses a NaN. Nor NumPy's, whose order of
        # additions depends on its version and on the number of values.
        return sum(values.tolist()) / len(values)


class Progress:
    """Counts what the learner has learned from, and ends the run at its goal.

    The rate excludes start-up and compilation: it starts after the first learner cycle at which
    every actor that has a collector has delivered a trajectory and an update has run, and ends with
    the last cycle.
    """

    def __init__(
        self,
        *,
        config: RunConfig,
        end: RunEnd,
        clocks: Mapping[str, Sequence[WallClock]],
        is_awaited: Callable[[int], bool] = lambda actor_id: False,
        now: Callable[[], float] = time.perf_counter,
    ):
        """Start now.

        Args:
            config: the run's goal and return window.
            end: is given the goal.
            clocks: the clocks of the threads by their kind, `actor` and `learner`.
            is_awaited: whether an actor of this host, by its number, has nobody yet who acts.
            now: seconds.
        """
        self.env_steps = 0  # of all hosts, like episodes
        self.updates = 0
        self.cycles = 0
        self.env_restarts = 0  # of this host, like `episodes_cut`
        self.episodes_cut = 0
        self.startup_s: float | None = None  # of this process
        self.window = EpisodeWindow(config.return_window)
        self.time_shares = TimeShares(clocks)  # without start-up
        self._config = config
        self._end = end
        self._is_awaited = is_awaited
        self._now = now
        self._started_at = now()
        self.counted_at = self._started_at  # when the last learner cycle was counted, in seconds
        self._earlier_wall_time_s = 0.0
        self._pending_actors = set(range(len(clocks["actor"])))
        self._steady_since: tuple[int, float] | None = None

    @property
    def is_steady(self) -> bool:
        """Whether start-up and compilation are over."""
        return self._steady_since is not None

    @property
    def steps_per_second(self) -> float | None:
        """Env steps learned from per second until the last learner cycle, without start-up."""
        if self._steady_since is None or self.env_steps == self._steady_since[0]:
            return None
        env_steps, at = self._steady_since
        return (self.env_steps - env_steps) / (self.counted_at - at)

    @property
    def wall_time_s(self) -> float:
        """Seconds since this process set the run up, plus those of the runs that it resumes."""
        return self._earlier_wall_time_s + self._now() - self._started_at

    @property
    def goals_reached(self) -> list[str]:
        """The settings of `run` whose goal is reached; any of them ends the run."""
        goal = self._config
        counts = {
            "stop_at_return": (self.window.return_mean, goal.stop_at_return),
            "total_episodes": (self.window.num_episodes, goal.total_episodes),
            "total_learner_cycles": (self.cycles, goal.total_learner_cycles),
            "total_env_steps": (self.env_steps, goal.total_env_steps),
        }
        return [
            name
            for name, (count, end) in counts.items()
            if count is not None and end is not None and count >= end
        ]

    def count(
        self, own: Sequence[UnrollInfo], of_all_hosts: Sequence[UnrollInfo], *, num_updates: int
    ) -> list[int]:
        """Count a learner cycle; return the policy lag of each unroll of all hosts."""
        for info in own:
            self._pending_actors.discard(info.actor_id)
            self.env_restarts += info.env_restarts
            self.episodes_cut += info.episodes_cut
        for info in of_all_hosts:
            self.env_steps += info.env_steps
            self.window.add(info.episodes, num_finished=info.num_episodes)
        lags = [self.cycles - info.policy_version for info in of_all_hosts]
        self.cycles += 1
        self.updates += num_updates
        self.counted_at = self._now()
        has_begun = all(map(self._is_awaited, self._pending_actors)) and self.updates > 0
        if self._steady_since is None and has_begun:
            self.startup_s = self.counted_at - self._started_at
            self._steady_since = (self.env_steps, self.counted_at)
            self.time_shares.restart()
        self._look_for_goal()
        return lags

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint, as JSON values."""
        return {
            "env_steps": self.env_steps,
            "updates": self.updates,
            "cycles": self.cycles,
            "env_restarts": self.env_restarts,
            "episodes_cut": self.episodes_cut,
            "wall_time_s": self.wall_time_s,
            "window": self.window.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Resume from a `state`; the rate starts again."""
        self.env_steps = state["env_steps"]
        self.updates = state["updates"]
        self.cycles = state["cycles"]
        self.env_restarts = state["env_restarts"]
        self.episodes_cut = state["episodes_cut"]
        self._earlier_wall_time_s = state["wall_time_s"]
        self.window.restore(state["window"])
        self._look_for_goal()

    def _look_for_goal(self) -> None:
        """End the run at its goal, which is the same on all hosts after the same cycle."""
        if self.goals_reached:
            self._end.goal = True
