"""The progress of a run: a live bar on a terminal, occasional lines elsewhere."""

import contextlib
import logging
import math
import sys
import threading
import time
from collections.abc import Callable
from typing import Protocol, TextIO

import rich.console
import rich.progress
import rich.table

from sebulba.errors import escaped
from sebulba.storage.metrics.base import Row

_LOGGER = logging.getLogger("sebulba")
_LIVE_INTERVAL_S = 0.1
_MIN_LINE_INTERVAL_S = 2.0
_MAX_LINE_INTERVAL_S = 60.0


class Display(Protocol):
    """Shows how a run goes. Thread-safe; never raises."""

    def update(self, row: Row) -> None:
        """Show a row of metrics."""
        ...

    def message(self, text: str) -> None:
        """Show a line of text; works after `close` too."""
        ...

    def close(self) -> None:
        """Show what is pending; may be called twice."""
        ...


class LogDisplay:
    """Passes lines of text on to the logger `sebulba`, as INFO, and shows nothing itself."""

    def update(self, row: Row) -> None:
        """Show nothing."""

    def message(self, text: str) -> None:
        """Log a line of text."""
        _LOGGER.info("%s", escaped(text))

    def close(self) -> None:
        """Do nothing."""


class _Style(Protocol):
    def show(self, row: Row) -> None: ...

    def message(self, text: str) -> None: ...

    def close(self) -> None: ...


class Console:
    """Shows the newest row and messages. Thread-safe; a broken stream never stops training."""

    def __init__(
        self,
        total_env_steps: int,
        stream: TextIO | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Start the bar if the stream is a terminal.

        Args:
            total_env_steps: goal of the run.
            stream: None: standard error, which keeps standard output for results.
            clock: in seconds.
        """
        stream = stream or sys.stderr
        is_live = stream.isatty() and not rich.console.Console(file=stream).is_dumb_terminal
        display = _LiveDisplay if is_live else _PlainDisplay
        # Reentrant, because a signal handler may send a message while this thread draws.
        self._lock = threading.RLock()
        self._display: _Style = display(total_env_steps=total_env_steps, stream=stream, clock=clock)

    def update(self, row: Row) -> None:
        """Show a row, or keep it for later if another was shown a moment ago."""
        with self._lock, contextlib.suppress(Exception):
            self._display.show(row)

    def message(self, text: str) -> None:
        """Print a line, above the bar if there is one; works after `close` too."""
        with self._lock, contextlib.suppress(Exception):
            self._display.message(escaped(text))

    def close(self) -> None:
        """Show the pending row and release the terminal; may be called twice."""
        with self._lock, contextlib.suppress(Exception):
            self._display.close()


class _PlainDisplay:
    """Prints a line every 2 seconds at first, every minute in long runs, and one at the end."""

    def __init__(self, *, total_env_steps: int, stream: TextIO, clock: Callable[[], float]):
        self._total_env_steps = total_env_steps
        self._stream = stream
        self._clock = clock
        self._started = clock()
        self._due = -math.inf
        self._pending: Row | None = None

    def show(self, row: Row) -> None:
        self._pending = row
        now = self._clock()
        if now < self._due:
            return
        interval = max(_MIN_LINE_INTERVAL_S, 0.01 * (now - self._started))
        self._due = now + min(interval, _MAX_LINE_INTERVAL_S)
        self._print_row()

    def message(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def close(self) -> None:
        self._print_row()

    def _print_row(self) -> None:
        if self._pending is not None:
            self.message(plain_line(self._pending, self._total_env_steps))
            self._pending = None


class _LiveDisplay:
    """Draws one line at the bottom of the terminal, only in `show`, so it needs no thread."""

    def __init__(self, *, total_env_steps: int, stream: TextIO, clock: Callable[[], float]):
        self._total_env_steps = total_env_steps
        self._clock = clock
        self._due = -math.inf
        percentage = rich.table.Column(no_wrap=True, min_width=4)
        status = rich.table.Column(no_wrap=True, overflow="ellipsis")
        self._progress = rich.progress.Progress(
            rich.progress.BarColumn(bar_width=None),
            rich.progress.TaskProgressColumn(table_column=percentage),
            rich.progress.TextColumn("{task.description}", markup=False, table_column=status),
            console=rich.console.Console(file=stream, force_terminal=True),
            auto_refresh=False,
            expand=True,
        )
        self._task = self._progress.add_task("starting", total=total_env_steps)
        self._progress.start()

    def show(self, row: Row) -> None:
        status = _live_status(row, self._total_env_steps)
        self._progress.update(self._task, completed=row["env_steps"], description=status)
        now = self._clock()
        if now >= self._due:
            self._due = now + _LIVE_INTERVAL_S
            self._progress.refresh()

    def message(self, text: str) -> None:
        self._progress.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        self._progress.stop()


def plain_line(row: Row, total_env_steps: int) -> str:
    """Return a row as one line of text, in columns of fixed width."""
    width = len(f"{total_env_steps:,}")
    return "   ".join(
        [
            f"  {row['env_steps']:>{width},} env steps {_rate(row):>9} steps/s",
            f"return {_number(row.get('episode_return_mean')):>5}",
            f"lag {_number(row.get('policy_lag_mean'))}",
            f"queue {_number(row.get('queue_depth'))}",
            f"ETA {_eta(row, total_env_steps)}",
        ]
    )


def _live_status(row: Row, total_env_steps: int) -> str:
    # The most important numbers come first: a narrow terminal cuts off the end.
    return "  ".join(
        [
            f"ETA {_eta(row, total_env_steps)}",
            f"{row['env_steps']:,} steps",
            f"{_rate(row)}/s",
            f"return {_number(row.get('episode_return_mean'))}",
            f"lag {_number(row.get('policy_lag_mean'))}",
            f"queue {_number(row.get('queue_depth'))}",
        ]
    )


def _rate(row: Row) -> str:
    rate = row.get("steps_per_second")
    return "-" if rate is None else f"{rate:,.0f}"


def _number(value: float | int | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, int) or abs(value) >= 10_000:
        return f"{value:,.0f}"
    return f"{value:,.1f}" if abs(value) >= 1 else f"{value:.2f}"


def _eta(row: Row, total_env_steps: int) -> str:
    rate = row.get("steps_per_second")
    if rate is None or not 0 < rate < math.inf:
        return "-"
    seconds = round(max(total_env_steps - row["env_steps"], 0) / rate)
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"
