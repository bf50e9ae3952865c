"""Say once if episodes end as soon as they begin, as after a flag that `reset` does not clear."""

from collections.abc import Callable

import numpy as np

from sebulba.ring.records import CycleReport
from sebulba.ring.ring import Observer

_NUM_RECENT = 100
_MIN_SHARE = 0.95  # some environments of a batch may still be in a long episode
_SHORT = 2  # env steps
_LONG = 5


class ShortEpisodes(Observer):
    """Looks at the lengths of finished episodes.

    Tasks of a single step exist, and a policy can learn to end episodes: this is a hint and no
    error.
    """

    def __init__(self, *, on_message: Callable[[str], None]):
        """Start without episodes.

        Args:
            on_message: takes a line of text.
        """
        self._on_message = on_message
        self._recent = np.zeros(0, np.int32)  # the lengths of the last episodes
        self._longest = 0
        self._has_told = False

    def on_cycle(self, report: CycleReport) -> None:
        """Add the episodes of a learner cycle."""
        if self._has_told:
            return
        for info in report.infos:
            lengths = np.asarray(info.episodes.episode_length)
            self._recent = np.concatenate([self._recent, lengths])[-_NUM_RECENT:]
            self._longest = max(self._longest, int(lengths.max(initial=0)))
        if len(self._recent) < _NUM_RECENT:
            return
        num_short = int(np.sum(self._recent <= _SHORT))
        if num_short >= _MIN_SHARE * _NUM_RECENT and self._longest >= _LONG:
            self._tell(
                f"warning: {num_short} of the last {_NUM_RECENT} episodes lasted at most {_SHORT}"
                f" env steps, the longest one of the run {self._longest:,}. Either reset of the"
                " environment does not clear what terminated and truncated are computed from, or"
                " the policy has learned to end episodes at once"
            )
        elif (self._recent == 1).all():
            self._tell(
                f"note: each of the last {_NUM_RECENT} episodes lasted 1 env step. If the task has"
                " longer episodes, correct what step of the environment returns as terminated and"
                " truncated"
            )

    def _tell(self, text: str) -> None:
        self._has_told = True
        self._on_message(text)
