"""The progress of a run: a live bar on a terminal, occasional lines elsewhere."""

import contextlib
import logging
import math
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TextIO

import rich.console
import rich.progress
import rich.table

from sebulba.config import RunConfig
from sebulba.errors import escaped
from sebulba.ring.clocks import Shares, bottleneck
from sebulba.storage.metrics.base import Row

_LOGGER = logging.getLogger("sebulba")
_LIVE_INTERVAL_S = 0.1
_MIN_LINE_INTERVAL_S = 2.0
_MAX_LINE_INTERVAL_S = 60.0
_MIN_BAR = 10  # columns
_UNITS = ((1e3, "k"), (1e6, "M"), (1e9, "G"))


class Display(Protocol):
    """Shows how a run goes. Thread-safe; never raises."""

    def update(self, row: Row) -> None:
        """Show a row of metrics."""
        ...

    def message(self, text: str, *, command: str = "") -> None:
        """Show a line of text; works after `close` too.

        Args:
            text: the line.
            command: the end of the line: a command that the user may copy, which is never wrapped.
        """
        ...

    def detail(self, text: str) -> None:
        """Show a line of text to those who want to know everything."""
        ...

    def close(self) -> None:
        """Show what is pending; may be called twice."""
        ...


class LogDisplay:
    """Passes text on to the logger `sebulba`, details as DEBUG, all else as INFO; shows nothing."""

    def update(self, row: Row) -> None:
        """Show nothing."""

    def message(self, text: str, *, command: str = "") -> None:
        """Log a line of text."""
        _LOGGER.info("%s", escaped(f"{text} {command}".rstrip()))

    def detail(self, text: str) -> None:
        """Log a line of text as DEBUG."""
        _LOGGER.debug("%s", escaped(text))

    def close(self) -> None:
        """Do nothing."""


class _Style(Protocol):
    def show(self, row: Row) -> None: ...

    def message(self, text: str, command: str) -> None: ...

    def close(self) -> None: ...


class Console:
    """Shows the newest row and messages. Thread-safe; a broken stream never stops training."""

    def __init__(
        self,
        run: RunConfig,
        stream: TextIO | None = None,
        *,
        verbose: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Start the bar if the stream is a terminal.

        Args:
            run: the goals of the run, and its return window.
            stream: None: standard error, which keeps standard output for results.
            verbose: whether details are shown.
            clock: in seconds.
        """
        stream = stream or sys.stderr
        is_live = stream.isatty() and not rich.console.Console(file=stream).is_dumb_terminal
        display = _LiveDisplay if is_live else _PlainDisplay
        self._verbose = verbose
        # Reentrant, because a signal handler may send a message while this thread draws.
        self._lock = threading.RLock()
        self._display: _Style = display(run=run, stream=stream, clock=clock)

    def update(self, row: Row) -> None:
        """Show a row, or keep it for later if another was shown a moment ago."""
        with self._lock, contextlib.suppress(Exception):
            self._display.show(row)

    def message(self, text: str, *, command: str = "") -> None:
        """Print a line, above the bar if there is one; works after `close` too."""
        with self._lock, contextlib.suppress(Exception):
            self._display.message(escaped(text), escaped(command))

    def detail(self, text: str) -> None:
        """Print a line if this console is verbose."""
        if self._verbose:
            self.message(text)

    def close(self) -> None:
        """Show the pending row and release the terminal; may be called twice."""
        with self._lock, contextlib.suppress(Exception):
            self._display.close()


class _PlainDisplay:
    """Prints a line every 2 seconds at first, every minute in long runs, and one at the end."""

    def __init__(self, *, run: RunConfig, stream: TextIO, clock: Callable[[], float]):
        self._stream = stream
        self._clock = clock
        self._started = clock()
        self._due = -math.inf
        self._pending: Row | None = None
        self._progress = _Progress(run)

    def show(self, row: Row) -> None:
        self._pending = row
        now = self._clock()
        if now < self._due:
            return
        interval = max(_MIN_LINE_INTERVAL_S, 0.01 * (now - self._started))
        self._due = now + min(interval, _MAX_LINE_INTERVAL_S)
        self._print_row()

    def message(self, text: str, command: str) -> None:
        print(f"{text} {command}".rstrip(), file=self._stream, flush=True)

    def close(self) -> None:
        self._print_row()

    def _print_row(self) -> None:
        if self._pending is not None:
            self.message(self._progress.line(self._pending), "")
            self._pending = None


class _LiveDisplay:
    """Draws one line at the bottom of the terminal, only in `show`, so it needs no thread."""

    def __init__(self, *, run: RunConfig, stream: TextIO, clock: Callable[[], float]):
        self._progress = _Progress(run)
        self._clock = clock
        self._due = -math.inf
        self._pending: Row | None = None
        status = rich.table.Column(no_wrap=True, overflow="ellipsis")
        self._bar = rich.progress.BarColumn()
        self._line = rich.progress.Progress(
            self._bar,
            rich.progress.TextColumn("{task.percentage:>3.0f}%"),
            rich.progress.TextColumn("{task.description}", markup=False, table_column=status),
            console=rich.console.Console(file=stream, force_terminal=True),
            auto_refresh=False,
        )
        self._task = self._line.add_task("", total=1.0)
        self._draw(0.0, ["starting"])
        self._line.start()

    def show(self, row: Row) -> None:
        self._pending = row
        now = self._clock()
        if now >= self._due:
            self._due = now + _LIVE_INTERVAL_S
            self._draw_row()

    def message(self, text: str, command: str) -> None:
        shown = laid_out(text, command, self._line.console.width)
        self._line.console.print(shown, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        try:
            self._draw_row()
        finally:
            self._line.stop()

    def _draw_row(self) -> None:
        row, self._pending = self._pending, None
        if row is not None:
            fields = self._progress.short_fields(row)
            self._draw(self._progress.fraction(row), fields)

    def _draw(self, fraction: float, fields: Sequence[str]) -> None:
        # The terminal echoes Ctrl-C as `^C`, which must not begin another line.
        room = self._line.console.width - len("^C") - len(" 100% ")
        description = _fitting(fields, room - _MIN_BAR)
        self._bar.bar_width = max(room - len(description), _MIN_BAR)
        self._line.update(self._task, completed=fraction, description=description)
        self._line.refresh()


def laid_out(text: str, command: str, width: int) -> str:
    """Return text for a terminal, which would break words at its edge.

    Args:
        text: is broken between words.
        command: the end of the text. If it does not fit, it gets a line of its own, on which the
            terminal may break it: a newline would end up in what the user copies.
        width: columns.
    """
    if len(text) + 1 + len(command) <= width:
        return f"{text} {command}".rstrip()
    lines = [
        textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False)
        for line in text.splitlines()
    ]
    return "\n".join([*lines, f"  {command}"] if command else lines)


def remote_actors_in(row: Row) -> str:
    """Return how many remote actors have joined, the slowest, the fastest, and their restarts.

    Returns:
        An empty text without any.
    """
    numbers: dict[str, list[Any]] = {"machine": [], "steps_per_second": [], "restarts": []}
    for key, value in row.items():
        if key.startswith("remote_actor/"):
            numbers.setdefault(key.split("/", 2)[2], []).append(value)
    if not numbers["restarts"]:
        return ""
    num_actors, num_restarts = len(numbers["restarts"]), sum(numbers["restarts"])
    rates_of = zip(numbers["machine"], numbers["steps_per_second"], strict=True)
    joined = [rate for machine, rate in rates_of if machine is not None]
    text = f"{num_actors} remote"
    if len(joined) < num_actors:
        text = f"{len(joined)} of {text}"
    rates = [rate for rate in joined if rate is not None]
    if rates:
        low, high = _short(min(rates)), _short(max(rates))
        text += f": {low}/s" if low == high else f": {low}/s–{high}/s"
    if num_restarts:
        text += f", {num_restarts} restart{'s' * (num_restarts != 1)}"
    return text


class _Progress:
    """Describes rows as progress to a run's goals, with the change since the row before."""

    def __init__(self, run: RunConfig):
        self._run = run
        self._first_return: float | None = None
        self._last_return: float | None = None

    def fraction(self, row: Row) -> float:
        """Return the progress to the goal that is nearest: one of the counts or the return."""
        counts = (
            (row["env_steps"], self._run.total_env_steps),
            (row["episodes"], self._run.total_episodes),
            (row["learner_cycles"], self._run.total_learner_cycles),
        )
        by_count: float = max(min(count / end, 1.0) for count, end in counts if end is not None)
        goal, mean = self._run.stop_at_return, row["episode_return_mean"]
        if goal is None or mean is None:
            return by_count
        if mean >= goal:
            return 1.0
        first = mean if self._first_return is None else self._first_return
        by_return: float = (mean - first) / (goal - first) if first < goal else 0.0
        return by_return if by_return > by_count else by_count  # A return may be NaN.

    def line(self, row: Row) -> str:
        """Return a row as one line of text, in columns of fixed width."""
        width, rate = len(f"{self._run.total_env_steps:,}"), row["steps_per_second"]
        fields = [
            f"{row['env_steps']:>{width},} env steps",
            *self._episodes(row),
            f"{self._return(row):<22}",
            f"{'-' if rate is None else f'{rate:,.0f}':>9} steps/s",
            f"{_limit(row):<13}",
            self._time_left(row),
            remote_actors_in(row),
        ]
        return f"  {self.fraction(row):>4.0%}  {'  '.join(fields)}".rstrip()

    def short_fields(self, row: Row) -> list[str]:
        """Return what a row says in few columns, the most important first."""
        fields = [
            self._return(row),
            *self._episodes(row),
            f"{_short(row['env_steps'])} steps",
            f"{_short(row['steps_per_second'])}/s",
            _limit(row),
            self._time_left(row),
            remote_actors_in(row),
        ]
        return [field for field in fields if field]

    def _episodes(self, row: Row) -> list[str]:
        """Return the number of episodes if it may end the run, else nothing."""
        total = self._run.total_episodes
        return [] if total is None else [f"{row['episodes']:>{len(f'{total:,}')},} episodes"]

    def _return(self, row: Row) -> str:
        """Return the mean return and its change since the row that was shown before."""
        mean, num_episodes = row["episode_return_mean"], row["episodes"]
        if mean is None:
            return f"{num_episodes} episode{'s' * (num_episodes != 1)} so far"
        change = math.nan if self._last_return is None else mean - self._last_return
        self._last_return = mean
        self._first_return = mean if self._first_return is None else self._first_return
        text = f"return {_number(mean)}"
        if math.isfinite(change):
            text += f" ({'+' if change >= 0 else ''}{_number(change)})"
        is_partial = num_episodes < self._run.return_window
        return f"{text} over {num_episodes} episodes" if is_partial else text

    def _time_left(self, row: Row) -> str:
        """Return the time until the last env step; episodes or a return may end the run earlier."""
        rate = row["steps_per_second"]
        if rate is None or not 0 < rate < math.inf or self.fraction(row) >= 1:
            return ""
        env_steps = self._run.total_env_steps - row["env_steps"]
        if self._run.total_learner_cycles is not None:
            cycles = self._run.total_learner_cycles - row["learner_cycles"]
            env_steps = min(env_steps, cycles * row["env_steps"] / row["learner_cycles"])
        seconds = round(max(env_steps, 0) / rate)
        hours, minutes, seconds = seconds // 3600, seconds // 60 % 60, seconds % 60
        left = f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
        is_latest = self._run.stop_at_return is not None or self._run.total_episodes is not None
        return f"≤ {left} left" if is_latest else f"{left} left"


def _limit(row: Row) -> str:
    """Return what limits the env steps per second, by the threads' time since the last row."""
    shares: Shares = {}
    for key, share in row.items():
        if key.startswith("time/"):
            _, kind, activity = key.split("/", 2)
            shares.setdefault(kind, {})[activity] = share
    return bottleneck(shares, all_reduce=row.get("all_reduce/share", 0.0)) or ""


def _fitting(fields: Sequence[str], width: int) -> str:
    """Return the first fields that fit into a width, at least one."""
    text, *others = fields
    for field in others:
        if len(text) + 2 + len(field) > width:
            break
        text = f"{text}  {field}"
    return text


def _short(count: float | None) -> str:
    """Return a count with three digits: 9,876; 98.8k; 1.23M."""
    if count is None:
        return "-"
    if count < 10_000:
        return f"{count:,.0f}"
    unit, letter = next((each for each in _UNITS if count < 999.5 * each[0]), _UNITS[-1])
    return f"{count / unit:.3g}{letter}"


def _number(value: float) -> str:
    if abs(value) >= 10_000:
        return f"{value:,.0f}"
    return f"{value:,.1f}" if abs(value) >= 1 else f"{value:.2f}"
