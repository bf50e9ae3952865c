"""Notices a thread that is stuck in something that may never come back.

Threads announce what they are about to do on their `WallClock`; waiting for a deque is never
announced, since it ends with the run. Nor is there a limit to compilation.
"""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence

from sebulba.ring.timing import ACT, AGREEMENT, ENVIRONMENT, UPDATE, WallClock

# An adapter that keeps the limit itself knows more of what hangs, and is to be heard first.
_GRACE_S = 1.0


class WatchdogError(RuntimeError):
    """A thread did not come back from what it was doing."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limit:
    """How long an activity may take."""

    seconds: float
    config_key: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Watched:
    """A thread, as the watchdog sees it."""

    name: str
    place: Callable[[], str]  # where it is now
    clock: WallClock
    limits: Mapping[str, Limit]  # by activity


class Watchdog:
    """Compares what threads announce with their limits, whenever it is asked."""

    def __init__(
        self, watched: Sequence[Watched], *, now: Callable[[], float] = time.perf_counter
    ) -> None:
        """Takes the threads to watch.

        Args:
            watched: one for each thread.
            now: seconds, on the clock of `WallClock.begin`.
        """
        self._watched = watched
        self._now = now

    def check(self) -> None:
        """Returns at once if every thread is within its limits.

        Raises:
            WatchdogError: which thread is not, in what, for how long, and what to change.
        """
        now = self._now()
        for thread in self._watched:
            current = thread.clock.current
            if current is None:
                continue
            activity, since = current
            limit = thread.limits.get(activity)
            if limit is not None and now - since > limit.seconds + _GRACE_S:
                error = WatchdogError(
                    f"{thread.name} has been in one {activity} for {now - since:.1f} s;"
                    f" {limit.config_key} allows {limit.seconds:g} s"
                )
                error.add_note(f"This happened in {thread.place()}.")
                raise error


def actor_limits(env_timeout_s: float | None) -> dict[str, Limit]:
    """Returns an actor's limits; None: there are none."""
    if env_timeout_s is None:
        return {}
    limit = Limit(seconds=env_timeout_s, config_key="actor.env_timeout_s")
    return {ACT: limit, ENVIRONMENT: limit}


def learner_limits(update_timeout_s: float | None) -> dict[str, Limit]:
    """Returns the learner's limits; None: there are none."""
    if update_timeout_s is None:
        return {}
    limit = Limit(seconds=update_timeout_s, config_key="learner.update_timeout_s")
    return {UPDATE: limit, AGREEMENT: limit}
