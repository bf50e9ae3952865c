"""Send every row of metrics to every writer without waiting for any of them.

Threads:

- The thread that makes the rows calls `MetricsFanOut.put`, which never waits and never raises.
- The supervisor gives each of `MetricsFanOut.queues` a daemon thread for its `run`. Only that
  thread uses the writer, so one that hangs (a network file system, a service) delays no other.
- The supervisor calls `MetricsFanOut.close` once, after the last `put`.
- `on_warning` is called from any of these threads, at most once per writer.
"""

import collections
import contextlib
import threading
import time
from collections.abc import Callable, Iterable

from sebulba.storage.lock import RunDirectoryError
from sebulba.storage.metrics.base import MetricsWriter, Row

# Every change notifies; the timeout is a second defence against a lost wake-up.
_WAKE_UP_S = 0.5


class WriterQueue:
    """A writer, the bounded queue of its rows, and the loop of the thread that writes them."""

    def __init__(
        self,
        *,
        writer: MetricsWriter,
        on_warning: Callable[[str], None],
        max_rows: int,
        check: Callable[[], None],
        name: str | None = None,  # in warnings; None: the writer's type
    ):
        self.name = name or type(writer).__name__
        self._writer = writer
        self._on_warning = on_warning
        self._max_rows = max_rows
        self._check = check
        self._changed = threading.Condition()
        self._rows: collections.deque[Row] = collections.deque()  # the first is being written
        self._dropped_rows = 0
        self._claimed = False
        self._closed = False
        self._warned = False
        self._finished = threading.Event()

    @property
    def dropped_rows(self) -> int:
        """Number of rows that failed, found the queue full, or were left at `close`."""
        with self._changed:
            return self._dropped_rows

    def put(self, row: Row) -> None:
        """Add a row, or drop and count it if the queue is full or closed. Never waits."""
        with self._changed:
            is_closed = self._closed
            is_queued = not is_closed and len(self._rows) < self._max_rows
            if is_queued:
                self._rows.append(row)
                self._changed.notify_all()
            else:
                self._dropped_rows += 1
        if not is_queued:
            self._warn("is closed" if is_closed else f"hangs with {self._max_rows} rows waiting")

    def run(self) -> None:
        """Write rows until the queue is closed and empty, then close the writer.

        Returns at once if another thread has already called this.
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
        """Make `run` return once the queue is empty; does not wait for it."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def join(self, timeout_s: float) -> bool:
        """Wait for the end of `run`; call it here if no thread has.

        Returns:
            Whether all rows have been handled. If not, the rest is dropped and counted.
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
            self._check()
            self._writer.write(row)
        except RunDirectoryError:  # This ends the run.
            self._remove(row, is_written=False)
        except Exception as error:
            self._remove(row, is_written=False)
            self._warn(f"failed at {row.get('env_steps')} env steps: {_describe(error)}")
        else:
            self._remove(row, is_written=True)

    def _remove(self, row: Row, *, is_written: bool) -> None:
        with self._changed:
            # A `join` that timed out has already removed and counted the row.
            if self._rows and self._rows[0] is row:
                self._rows.popleft()
                self._dropped_rows += not is_written

    def _warn(self, problem: str) -> None:
        with self._changed:
            is_first, self._warned = not self._warned, True
        if is_first:
            with contextlib.suppress(Exception):
                self._on_warning(
                    f"metrics: {self.name} {problem}; training continues without its rows"
                )


class MetricsFanOut:
    """All writers of a run; none of them can slow, stop or crash the run."""

    def __init__(
        self,
        writers: Iterable[MetricsWriter],
        on_warning: Callable[[str], None],
        *,
        services: Iterable[MetricsWriter] = (),
        max_rows: int = 1000,
        check: Callable[[], None] = lambda: None,
    ):
        """Create a queue for each writer.

        Args:
            writers: write files; they are closed with the fan-out.
            services: writers that need longer, such as for a connection; closed likewise.
            on_warning: takes one line of text; called at most once per writer, from any thread.
            max_rows: maximum number of rows waiting for each writer.
            check: called in the writers' threads before each row; if it raises, the row is dropped.
        """
        self._files, self._services = (
            tuple(
                WriterQueue(writer=writer, on_warning=on_warning, max_rows=max_rows, check=check)
                for writer in group
            )
            for group in (writers, services)
        )
        self.queues = (*self._files, *self._services)

    @property
    def dropped_rows(self) -> dict[str, int]:
        """Number of dropped rows by writer, for writers that dropped any."""
        counts = collections.Counter[str]()
        for queue in self.queues:
            counts[queue.name] += queue.dropped_rows
        return dict(+counts)

    def put(self, row: Row) -> None:
        """Queue a copy of the row for every writer. Never waits, never raises."""
        for queue in self.queues:
            queue.put(dict(row))

    def close(self, timeout_s: float, services_timeout_s: float | None = None) -> bool:
        """Wait until all rows are written and all writers closed, or `timeout_s` has passed.

        A queue without a thread is emptied here, without a time limit.

        Args:
            timeout_s: seconds for all files together.
            services_timeout_s: seconds for all services together; None: as long.

        Returns:
            Whether every writer has finished. Rows of the others are dropped and counted, and
            their threads are abandoned.
        """
        begin = time.monotonic()
        limits = (timeout_s, timeout_s if services_timeout_s is None else services_timeout_s)
        for queue in self.queues:
            queue.close()
        return all(
            [
                queue.join(begin + limit - time.monotonic())
                for queues, limit in zip((self._files, self._services), limits, strict=True)
                for queue in queues
            ]
        )


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
