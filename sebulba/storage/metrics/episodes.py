"""The running means over recent episodes."""

import collections
from collections.abc import Sequence
from typing import Any

from sebulba.types import EpisodeRecord


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
        self._minimum = min(minimum, size)
        self._records: collections.deque[EpisodeRecord] = collections.deque(maxlen=size)
        self._num_episodes = 0
        self._best_return_mean: float | None = None

    def add(self, records: Sequence[EpisodeRecord], *, num_finished: int | None = None) -> None:
        """Add finished episodes, in the order in which they ended.

        Args:
            records: of the episodes; older ones that do not fit into the window may be missing.
            num_finished: number of episodes, including missing ones; None: none is missing.
        """
        self._records.extend(records)
        self._num_episodes += len(records) if num_finished is None else num_finished
        mean = self.return_mean
        if mean is not None and (self._best_return_mean is None or mean > self._best_return_mean):
            self._best_return_mean = mean

    @property
    def return_mean(self) -> float | None:
        """The mean return over the window; None until `minimum` episodes have finished."""
        return self._mean([record.episode_return for record in self._records])

    @property
    def length_mean(self) -> float | None:
        """The mean length in env steps; None until `minimum` episodes have finished."""
        return self._mean([record.episode_length for record in self._records])

    def reduced_mean(self, name: str) -> float | None:
        """Return the mean of a custom per-episode metric over the window.

        None until `minimum` episodes have it; an interrupted episode does not.
        """
        return self._mean(
            [record.reduced[name] for record in self._records if name in record.reduced]
        )

    @property
    def last_return(self) -> float | None:
        """The return of the episode that finished last; None without one."""
        return self._records[-1].episode_return if self._records else None

    @property
    def num_episodes(self) -> int:
        """Number of finished episodes, including those that have left the window."""
        return self._num_episodes

    @property
    def best_return_mean(self) -> float | None:
        """The highest `return_mean` after any `add`; None until there is one."""
        return self._best_return_mean

    def state(self) -> dict[str, Any]:
        """Return the JSON values that a checkpoint stores."""
        return {
            "returns": [record.episode_return for record in self._records],
            "lengths": [record.episode_length for record in self._records],
            "reduced": [record.reduced for record in self._records],
            "num_episodes": self._num_episodes,
            "best_return_mean": self._best_return_mean,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a `state`; a smaller window keeps the newest episodes."""
        self._records.clear()
        stored = (state["returns"], state["lengths"], state["reduced"])
        for episode_return, length, reduced in zip(*stored, strict=True):
            self._records.append(
                EpisodeRecord(episode_return=episode_return, episode_length=length, reduced=reduced)
            )
        self._num_episodes = state["num_episodes"]
        self._best_return_mean = state["best_return_mean"]

    def _mean(self, values: list[float]) -> float | None:
        if len(values) < self._minimum:
            return None
        # Not a running sum, which drifts and never loses a NaN.
        return sum(values) / len(values)
