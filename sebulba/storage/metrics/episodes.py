"""The running mean over the last finished episodes."""

import collections
from collections.abc import Sequence
from typing import Any

from sebulba.types import EpisodeRecord


class EpisodeWindow:
    """The last `size` finished episodes of all actors. Not thread-safe: the learner's alone."""

    def __init__(self, size: int, minimum: int = 20):
        """Starts without any episode.

        Args:
            size: finished episodes in the window.
            minimum: finished episodes before there is a mean; at most `size` are asked for.
        """
        if size < 1:
            raise ValueError(f"expected run.return_window of at least 1 episode, got {size}")
        self._minimum = min(minimum, size)
        self._records: collections.deque[EpisodeRecord] = collections.deque(maxlen=size)
        self._num_episodes = 0
        self._best_return_mean: float | None = None

    def add(self, records: Sequence[EpisodeRecord], *, num_finished: int | None = None) -> None:
        """Takes finished episodes in, in the order of their ends.

        Args:
            records: of them; those that the window has no room for may be missing.
            num_finished: with those that are missing; default: none is.
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
        """Returns the mean over the window of what a reducer made of each episode.

        None until it has for `minimum` episodes; an episode that was cut has no such number.
        """
        return self._mean(
            [record.reduced[name] for record in self._records if name in record.reduced]
        )

    @property
    def last_return(self) -> float | None:
        """The return of the episode that finished last; None until there is one."""
        return self._records[-1].episode_return if self._records else None

    @property
    def num_episodes(self) -> int:
        """Episodes finished so far, also those that have left the window."""
        return self._num_episodes

    @property
    def best_return_mean(self) -> float | None:
        """The greatest `return_mean` there has been after an `add`; None until there is one."""
        return self._best_return_mean

    def state(self) -> dict[str, Any]:
        """Returns what a checkpoint stores, as plain JSON values."""
        return {
            "returns": [record.episode_return for record in self._records],
            "lengths": [record.episode_length for record in self._records],
            "reduced": [record.reduced for record in self._records],
            "num_episodes": self._num_episodes,
            "best_return_mean": self._best_return_mean,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on from a `state`; of one from a larger window the newest episodes are kept."""
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
        # Summed anew each time: a running sum drifts, and never gets rid of a NaN.
        return sum(values) / len(values)
