"""Detect a thread that hangs in an environment, the agent, a compilation or a collective.

Threads `begin` such calls on their `WallClock`. They do not begin waits for a deque, which end with
the run.
"""

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping, Sequence

from sebulba.errors import PLACE
from sebulba.ring.clocks import (
    ACT,
    AGREEMENT,
    COMPILE,
    ENVIRONMENT,
    INFERENCE,
    MAKE_ENVIRONMENTS,
    TRANSFER,
    UPDATE,
    WallClock,
)
from sebulba.ring.ring import Observer, Ring, where_actor, where_learner
from sebulba.ring.threads import WatchdogError

# Some adapters enforce the same limit; their error names the worker, so they get to raise first.
_GRACE_S = 1.0
# Checks are usually 0.2 s apart. After a gap this long the process has probably been stopped
# (Ctrl-Z, SIGSTOP, a frozen container); if not, a hang is noticed later by the length of the gap.
_LONGEST_GAP_S = 5.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limit:
    """The longest time that an activity may take."""

    seconds: float
    config_key: str
    wait_s: Callable[[], float] = lambda: 0.0  # the device may be busy for so long before it starts


@dataclasses.dataclass(frozen=True, kw_only=True)
class Watched:
    """A thread that the watchdog checks."""

    name: str
    where: Callable[[], str]  # it is now
    clock: WallClock
    limits: Mapping[str, Limit]  # by activity


class Watchdog(Observer):
    """Compares the current activity of every thread with its limit; has no thread of its own."""

    def __init__(
        self, watched: Sequence[Watched], *, now: Callable[[], float] = time.perf_counter
    ) -> None:
        """Take the threads to watch; `now` gives seconds on the clock of `WallClock.begin`."""
        self._watched = watched
        self._now = now
        self._last_check = now()
        self._stops: list[tuple[float, float]] = []  # the end and the seconds of each stop

    def on_poll(self) -> None:
        """Check every thread; returns at once. Time of a stopped process is not counted.

        Raises:
            WatchdogError: a thread exceeded its limit.
        """
        now = self._now()
        if (gap := now - self._last_check) > _LONGEST_GAP_S:
            self._stops.append((now, gap))
        self._last_check = now
        for thread in self._watched:
            current = thread.clock.current
            if current is None:
                continue
            activity, since = current
            limit = thread.limits.get(activity)
            seconds = now - since - sum(stop for end, stop in self._stops if end > since)
            if limit is None or seconds <= limit.seconds + _GRACE_S:
                continue
            wait_s = limit.wait_s()
            if seconds > limit.seconds + _GRACE_S + wait_s:
                and_wait = f" and {wait_s:.1f} s, the longest update" if wait_s else ""
                error = WatchdogError(
                    f"{thread.name}: {activity} still running after {seconds:.1f} s; the limit is"
                    f" {limit.seconds:g} s ({limit.config_key}){and_wait}"
                )
                error.add_note(f"{PLACE} {thread.where()}.")
                raise error


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timeouts:
    """The limits of a run, in seconds; None: no limit."""

    env_s: float | None = None
    update_s: float | None = None
    compile_s: float | None = None

    def of_actor(self, longest_update: Callable[[], float]) -> dict[str, Limit]:
        """Return the limits of an actor; `longest_update` gives seconds."""
        # On a device that also learns, all but environments on the host wait for its updates.
        return (
            _limits("actor.env_timeout_s", self.env_s, ENVIRONMENT)
            | _limits("actor.env_timeout_s", self.env_s, ACT, wait_s=longest_update)
            | _limits("learner.update_timeout_s", self.update_s, INFERENCE, TRANSFER)
            | _limits("run.compile_timeout_s", self.compile_s, COMPILE, MAKE_ENVIRONMENTS)
        )

    def of_learner(self) -> dict[str, Limit]:
        """Return the limits of the learner."""
        return _limits("learner.update_timeout_s", self.update_s, UPDATE, AGREEMENT) | _limits(
            "run.compile_timeout_s", self.compile_s, COMPILE
        )


def _limits(
    config_key: str,
    seconds: float | None,
    *activities: str,
    wait_s: Callable[[], float] = lambda: 0.0,
) -> dict[str, Limit]:
    if seconds is None:
        return {}
    limit = Limit(seconds=seconds, config_key=config_key, wait_s=wait_s)
    return dict.fromkeys(activities, limit)


def watchdog_of(ring: Ring, timeouts: Timeouts) -> Watchdog:
    """Return the watchdog of a ring's learner and actors."""
    learner = Watched(
        name="the learner",
        clock=ring.learner.clock,
        where=functools.partial(where_learner, ring.learner),
        limits=timeouts.of_learner(),
    )
    actors = [
        Watched(
            name=f"actor {actor.actor_id}",
            clock=actor.clock,
            where=functools.partial(where_actor, actor),
            limits=timeouts.of_actor(ring.learner.clock.longest_update),
        )
        for actor in ring.actors
    ]
    return Watchdog([learner, *actors])
