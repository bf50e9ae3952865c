"""Functions of the user that are called with the rows of a run, and may end it."""

import collections
from collections.abc import Sequence
from typing import Literal, Protocol

from sebulba.ring.ring import Observer
from sebulba.ring.run_end import RunEnd
from sebulba.storage.metrics.base import Row

Event = Literal["metrics", "evaluation"]


class Callback(Protocol):
    """A function that `sebulba.train` calls with each row, in the thread of its caller."""

    def __call__(self, event: Event, row: Row) -> bool | None:
        """Look at a row; return True to end the run.

        Training continues during the call, so the run ends a few learner cycles later.

        Args:
            event: `metrics` for a row of `metrics.jsonl`, `evaluation` for one of
                `evaluations.jsonl`.
            row: values by name.
        """
        ...


class Callbacks(Observer):
    """Hands the rows from the learner's thread to functions in the supervisor's thread."""

    def __init__(self, callbacks: Sequence[Callback], end: RunEnd):
        """Call nothing yet.

        Args:
            callbacks: the user's functions.
            end: is given the goal if one of them asks for it.
        """
        self.failure: BaseException | None = None  # that a callback raised
        self._callbacks = tuple(callbacks)
        self._end = end
        self._waiting: collections.deque[tuple[Event, Row]] = collections.deque()

    def add(self, event: Event, row: Row) -> None:
        """Add a row, in any thread."""
        if self._callbacks:
            self._waiting.append((event, row))

    def on_poll(self) -> None:
        """Call every callback with every row so far.

        Raises:
            BaseException: what a callback raised.
        """
        while self._waiting:
            event, row = self._waiting.popleft()
            for callback in self._callbacks:
                try:
                    # Each gets its own: writers and other callbacks have this one.
                    if callback(event, dict(row)):
                        self._end.goal = True
                except BaseException as error:
                    self.failure = error
                    raise

    def close(self, end: RunEnd) -> None:
        """Deliver the last rows, unless a callback failed."""
        if self.failure is None:
            self.on_poll()
