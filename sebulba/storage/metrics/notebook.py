"""The progress of a run in a Jupyter notebook: one line below the cell, updated in place."""

import contextlib
import datetime
import html
import logging
import math
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from sebulba.errors import escaped
from sebulba.storage.metrics.base import Row
from sebulba.storage.metrics.console import remote_actors_in

_LOGGER = logging.getLogger("sebulba")
_INTERVAL_S = 0.2  # each update is a message that the notebook's page has to draw


def in_notebook() -> bool:
    """Return whether a Jupyter kernel runs this code. Does not import IPython."""
    ipython = sys.modules.get("IPython")
    # The shell of a terminal has no kernel.
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


def _display_function() -> Callable[..., Any]:
    from IPython.display import display

    return display


class NotebookDisplay:
    """Shows the newest row as one line. Thread-safe; what the notebook raises stops no run.

    Lines of text go to the logger `sebulba`, details as DEBUG, all else as INFO.
    """

    def __init__(
        self,
        total_env_steps: int,
        *,
        show: Callable[..., Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Show nothing yet.

        Args:
            total_env_steps: the goal of the run.
            show: shows a bundle of MIME types, with the arguments of `IPython.display.display`;
                None: that function.
            clock: in seconds.
        """
        self._total_env_steps = total_env_steps
        self._show = show or _display_function()
        self._clock = clock
        # Reentrant, because a signal handler may send a message while this thread draws.
        self._lock = threading.RLock()
        self._handle: Any = None  # of the line; None: it is not shown yet
        self._due = -math.inf
        self._row: Row | None = None  # the newest

    def update(self, row: Row) -> None:
        """Show a row, or keep it for later if another was shown a moment ago."""
        with self._lock:
            self._row = row
            now = self._clock()
            if now >= self._due:
                self._due = now + _INTERVAL_S
                self._draw(row["env_steps"], _status(row, self._total_env_steps))

    def message(self, text: str, *, command: str = "") -> None:
        """Log a line of text and a command; the first one starts the line of progress."""
        _LOGGER.info("%s", escaped(f"{text} {command}".rstrip()))
        with self._lock:
            if self._handle is None:
                self._draw(0, "starting: compiling the programs of the run")

    def detail(self, text: str) -> None:
        """Log a line of text as DEBUG."""
        _LOGGER.debug("%s", escaped(text))

    def close(self) -> None:
        """Show the newest row, as the last one; may be called twice."""
        with self._lock:
            if self._row is not None:
                self._draw(self._row["env_steps"], _status(self._row, None))

    def _draw(self, env_steps: int, text: str) -> None:
        value = min(env_steps, self._total_env_steps)
        bar = f'<progress value="{value}" max="{self._total_env_steps}"></progress>'
        bundle = {
            "text/plain": f"{value / self._total_env_steps:4.0%} · {text}",
            "text/html": f"{bar} {html.escape(text)}",
        }
        with contextlib.suppress(Exception):
            if self._handle is None:
                self._handle = self._show(bundle, raw=True, display_id=True)
            else:
                self._handle.update(bundle, raw=True)


def _status(row: Row, total_env_steps: int | None) -> str:
    """Return a row as a line of text; with the time left unless the total is None."""
    words = [f"{row['env_steps']:,} env steps"]
    rate, mean = row.get("steps_per_second"), row.get("episode_return_mean")
    if mean is not None:
        words.append(f"return {mean:,.5g}")
    if rate is not None:
        words.append(f"{rate:,.0f} env steps/s")
    if remote_actors := remote_actors_in(row):
        words.append(remote_actors)
    if total_env_steps is not None and rate:
        seconds = round(max(total_env_steps - row["env_steps"], 0) / rate)
        words.append(f"at most {datetime.timedelta(seconds=seconds)} left")
    return " · ".join(words)
