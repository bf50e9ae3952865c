"""Says what is being compiled while the first learner cycle takes long."""

import time
from collections.abc import Callable, Mapping

import jax

from sebulba.ring.clocks import COMPILE, WallClock
from sebulba.ring.ring import Observer, Ring

_FIRST_LINE_S = 10.0
_FACTOR = 3  # between the times of two lines: after 10, 30, 90 s, …


class SlowCompilation(Observer):
    """Shows a line of text while compilations take long; has no thread of its own."""

    def __init__(
        self,
        clocks: Mapping[str, WallClock],
        *,
        on_message: Callable[[str], None],
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Take what to look at.

        Args:
            clocks: those of all threads, by what the threads compile.
            on_message: takes a line of text.
            now: gives seconds on the clock of `WallClock.begin`.
        """
        self._clocks = clocks
        self._on_message = on_message
        self._now = now
        self._next_line_s = _FIRST_LINE_S

    def on_poll(self) -> None:
        """Show a line if a compilation has taken longer than at the last one."""
        begun = {what: clock.current for what, clock in self._clocks.items()}
        seconds = {
            what: self._now() - current[1]
            for what, current in begun.items()
            if current is not None and current[0] == COMPILE
        }
        longest = max(seconds.values(), default=0.0)
        if longest < self._next_line_s:
            return
        self._next_line_s = longest * _FACTOR
        cache = jax.config.values["jax_compilation_cache_dir"]
        later = f". Later starts take programs from {cache}" if cache is not None else ""
        self._on_message(f"compiling for {longest:.0f} s: {', '.join(seconds)}{later}")


def slow_compilation_of(ring: Ring, *, on_message: Callable[[str], None]) -> SlowCompilation:
    """Return the observer of a ring's compilations.

    Args:
        ring: the run's.
        on_message: takes a line of text.
    """
    actors = {f"the act cycle of actor {actor.actor_id}": actor.clock for actor in ring.actors}
    clocks = {"the learner cycle": ring.learner.clock, **actors}
    return SlowCompilation(clocks, on_message=on_message)
