"""Hands every row to every writer, without ever waiting for one.

Who calls what:

- The thread that makes the rows calls `MetricsFanOut.put`, which never waits and never raises.
- The runner gives each of `MetricsFanOut.lanes` a daemon thread for its `run`. There the writer
  writes, and there it is closed; nothing else touches it. One writer that hangs (a network file
  system, a service) therefore delays no other.
- Whoever supervises calls `MetricsFanOut.close` once, after the last `put`.
- `on_warning` is called from any of these threads, once a writer at most.
"""

import collections
import contextlib
import threading
import time
from collections.abc import Callable, Iterable

from sebulba.storage.metrics.base import MetricsWriter, Row

# Every change notifies; the timeout is a second line of defence against a lost wake-up.
_WAKE_UP_S = 0.5


class WriterLane:
    """One writer, the bounded queue before it, and the loop of the thread that it writes in."""

    def __init__(self, *, writer: MetricsWriter, on_warning: Callable[[str], None], max_rows: int):
        self.name = type(writer).__name__
        self._writer = writer
        self._on_warning = on_warning
        self._max_rows = max_rows
        self._changed = threading.Condition()
        self._rows: collections.deque[Row] = collections.deque()  # the first one is being written
        self._dropped_rows = 0
        self._claimed = False
        self._closed = False
        self._warned = False
        self._finished = threading.Event()

    @property
    def dropped_rows(self) -> int:
        """Rows that are not known to be written: failed, without room, or left at `close`."""
        with self._changed:
            return self._dropped_rows

    def put(self, row: Row) -> None:
        """Queues a row, or drops and counts it if the queue is full or closed. Never waits."""
        with self._changed:
            is_closed = self._closed
            is_queued = not is_closed and len(self._rows) < self._max_rows
            if is_queued:
                self._rows.append(row)
                self._changed.notify_all()
            else:
                self._dropped_rows += 1
        if not is_queued:
            self._warn("is closed" if is_closed else f"is stuck with {self._max_rows} rows waiting")

    def run(self) -> None:
        """Writes rows until the lane is closed and empty, then closes the writer.

        Returns at once if another thread has called it before.
        """
        if not self._claim():
            return
        while (row := self._next()) is not None:
            self._write(row)
        try:
            self._writer.close()
        except Exception as error:
            self._warn(f"failed to close: {_describe(error)}")
        self._finished.set()

    def close(self) -> None:
        """Tells `run` to return once the queue is empty; does not wait for it."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def join(self, timeout_s: float) -> bool:
        """Waits for the end of `run`; runs it here and now if no thread ever has.

        Returns:
            Whether all rows have been handled. If not, those left are dropped and counted.
        """
        self.run()
        if self._finished.wait(max(timeout_s, 0.0)):
            return True
        with self._changed:
            num_left = len(self._rows)
            self._dropped_rows += num_left
            self._rows.clear()
        self._warn(f"did not finish in time with {num_left} rows left")
        return False

    def _claim(self) -> bool:
        with self._changed:
            is_first, self._claimed = not self._claimed, True
            return is_first

    def _next(self) -> Row | None:
        with self._changed:
            while not self._rows and not self._closed:
                self._changed.wait(_WAKE_UP_S)
            return self._rows[0] if self._rows else None

    def _write(self, row: Row) -> None:
        try:
            self._writer.write(row)
        except Exception as error:
            self._retire(row, is_written=False)
            self._warn(f"failed at {row.get('env_steps')} env steps: {_describe(error)}")
        else:
            self._retire(row, is_written=True)

    def _retire(self, row: Row, *, is_written: bool) -> None:
        with self._changed:
            # A `join` that gave up has counted the row already.
            if self._rows and self._rows[0] is row:
                self._rows.popleft()
                self._dropped_rows += not is_written

    def _warn(self, trouble: str) -> None:
        with self._changed:
            is_first, self._warned = not self._warned, True
        if is_first:
            with contextlib.suppress(Exception):
                self._on_warning(
                    f"metrics: {self.name} {trouble}; training goes on without its rows"
                )


class MetricsFanOut:
    """All writers of a run; none of them can slow, stop or crash the run."""

    def __init__(
        self,
        writers: Iterable[MetricsWriter],
        on_warning: Callable[[str], None],
        *,
        max_rows: int = 1000,
    ):
        """Takes the writers over.

        Args:
            writers: closed by the fan-out.
            on_warning: takes one line of text; called once a writer at most, from any thread.
            max_rows: rows that may wait for each writer.
        """
        self.lanes = tuple(
            WriterLane(writer=writer, on_warning=on_warning, max_rows=max_rows)
            for writer in writers
        )

    @property
    def dropped_rows(self) -> dict[str, int]:
        """Rows not known to be written, for each writer that has any."""
        counts = collections.Counter[str]()
        for lane in self.lanes:
            counts[lane.name] += lane.dropped_rows
        return dict(+counts)

    def put(self, row: Row) -> None:
        """Hands a copy of the row to every writer. Never waits, never raises."""
        for lane in self.lanes:
            lane.put(dict(row))

    def close(self, timeout_s: float) -> bool:
        """Waits until all rows are written and all writers closed, or `timeout_s` has passed.

        A lane that was never given a thread is run here, without a limit of time.

        Args:
            timeout_s: seconds for all writers together.

        Returns:
            Whether every writer has finished; the rows of one that has not are dropped and counted,
            and its thread is to be abandoned.
        """
        deadline = time.monotonic() + timeout_s
        for lane in self.lanes:
            lane.close()
        return all([lane.join(deadline - time.monotonic()) for lane in self.lanes])


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
