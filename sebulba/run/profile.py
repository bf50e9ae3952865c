"""Record a profiler trace of some learner cycles: `run.profile`."""

import pathlib
from collections.abc import Callable

import jax

from sebulba.config import ProfileConfig
from sebulba.ring.records import CycleReport
from sebulba.ring.ring import Observer
from sebulba.ring.run_end import RunEnd


def borders_of(config: ProfileConfig) -> tuple[int, int]:
    """Return the numbers of completed learner cycles at which a trace starts and stops."""
    return config.from_cycle, config.from_cycle + config.cycles


class Profiler(Observer):
    """Starts and stops JAX's profiler between two learner cycles, which covers all threads.

    The regions `act cycle`, `transfer` and `update` are named in the code that they cover.
    """

    def __init__(
        self,
        config: ProfileConfig,
        directory: pathlib.Path,
        *,
        num_cycles: int,
        on_message: Callable[[str], None],
    ):
        """Prepare the trace, and start it if it begins with the next cycle.

        Args:
            config: the cycles to record.
            directory: receives the trace.
            num_cycles: learner cycles that the run has completed.
            on_message: takes a line of text.
        """
        self._config = config
        self._directory = directory
        self._on_message = on_message
        self._is_running = self._has_begun = False
        self._first = self._last = num_cycles
        self._start_or_stop(num_cycles)

    def on_cycle(self, report: CycleReport) -> None:
        """Start or stop the trace if it is time."""
        self._last = report.num_cycles
        self._start_or_stop(report.num_cycles)

    def close(self, end: RunEnd) -> None:
        """Write the trace if it is running, and say so if it has never begun."""
        self._stop()
        if not self._has_begun:
            self._on_message(
                "profile: nothing was recorded; run.profile.from_cycle is"
                f" {self._config.from_cycle}, and this run had the learner cycles from"
                f" {self._first} to {self._last}"
            )

    def _start_or_stop(self, cycle: int) -> None:
        first, end = borders_of(self._config)
        if self._is_running and cycle >= end:
            self._stop()
        elif not self._is_running and cycle == first:
            options = jax.profiler.ProfileOptions()
            options.python_tracer_level = 0  # every Python call would distort the times
            jax.profiler.start_trace(self._directory, profiler_options=options)
            self._is_running = self._has_begun = True

    def _stop(self) -> None:
        if not self._is_running:
            return
        self._is_running = False
        try:
            jax.profiler.stop_trace()
        except (OSError, RuntimeError) as error:  # as on a full disk: it must not end the run
            self._on_message(f"profile: cannot write the trace to {self._directory}: {error}")
        else:
            self._on_message(f"profile: wrote the trace to {self._directory}")
