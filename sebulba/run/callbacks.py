"""Functions of the user that are called with the rows of a run, and may end it."""

import collections
import time
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

from sebulba.ring.ring import Observer
from sebulba.ring.run_end import RunEnd
from sebulba.storage.metrics.base import Row

Event = Literal["metrics", "evaluation"]

_LONGEST_S = 0.5  # in which callbacks are called before the supervisor looks at everything else
_MANY_ROWS = 100


class Callback(Protocol):
    """A function that `sebulba.train` calls with each row, in the thread of its caller."""

    def __call__(self, event: Event, row: Row) -> bool | None:
        """Look at a row; return True to end the run.

        Training continues during the call, so the run ends a few learner cycles later, or more if
        rows come faster than the callbacks return. No checkpoint is saved during the call.

        Args:
            event: `metrics` for a row of `metrics.jsonl`, `evaluation` for one of
                `evaluations.jsonl`.
            row: values by name.
        """
        ...


class Callbacks(Observer):
    """Hands the rows from the learner's thread to functions in the supervisor's thread.

    Rows wait while a function is slow. The supervisor has to look at signals and checkpoints too,
    so it calls for a short time, then looks, and goes on at its next poll.
    """

    def __init__(
        self,
        callbacks: Sequence[Callback],
        end: RunEnd,
        *,
        on_warning: Callable[[str], None],
        now: Callable[[], float] = time.monotonic,
    ):
        """Call nothing yet.

        Args:
            callbacks: the user's functions.
            end: is given the goal if one of them asks for it.
            on_warning: takes a line if rows come faster than the functions return.
            now: the clock, in seconds.
        """
        self.failure: BaseException | None = None  # that a callback raised
        self._callbacks = tuple(callbacks)
        self._end = end
        self._on_warning = on_warning
        self._now = now
        self._waiting: collections.deque[tuple[Event, Row]] = collections.deque()
        self._has_asked = False  # for the run's end
        self._has_warned = False

    def add(self, event: Event, row: Row) -> None:
        """Add a row, in any thread."""
        if self._callbacks:
            self._waiting.append((event, row))

    def on_poll(self) -> None:
        """Call every callback with the rows that wait, for a short time.

        Raises:
            BaseException: what a callback raised.
        """
        began = self._now()
        while self._waiting and self._now() - began < _LONGEST_S:
            self._call()
        if len(self._waiting) >= _MANY_ROWS and not self._has_warned:
            self._has_warned = True
            self._on_warning(
                f"callbacks: {len(self._waiting)} rows wait, since they come faster than the"
                " callbacks return: raise run.log_interval_env_steps"
            )

    def close(self, end: RunEnd) -> None:
        """Deliver the last rows, unless a callback failed; only briefly if the run was stopped."""
        began = self._now()
        while self._waiting and self.failure is None:
            is_stopped = self._has_asked or end.is_interrupted
            if is_stopped and self._now() - began >= _LONGEST_S:
                return
            self._call()

    def _call(self) -> None:
        event, row = self._waiting.popleft()
        for callback in self._callbacks:
            try:
                # Each gets its own: writers and other callbacks have this one.
                if callback(event, dict(row)):
                    self._end.goal = self._has_asked = True
            except BaseException as error:
                self.failure = error
                raise
