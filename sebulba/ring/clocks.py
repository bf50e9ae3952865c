"""Where the threads' wall time goes."""

import time
from collections.abc import Mapping, Sequence
from typing import Literal

# Activities of actors.
ACT = "act"  # environment and inference in one jitted call
ENVIRONMENT = "environment"
MAKE_ENVIRONMENTS = "make environments"  # only begun; its time counts as environment
INFERENCE = "inference"
TRANSFER = "transfer"
WAIT_FOR_NETWORKS = "wait for networks"
WAIT_FOR_QUEUE = "wait for queue"
# Activities of the learner.
UPDATE = "update"
COMPILE = "compile"  # only begun, also by actors; its time counts as the lap that follows
PUBLISH = "publish"
METRICS = "metrics"
AGREEMENT = "agreement of the hosts"  # only begun; its time counts as metrics
CHECKPOINT = "checkpoint"
WAIT_FOR_TRAJECTORIES = "wait for trajectories"

BUSY_ACTING = (ACT, ENVIRONMENT, INFERENCE, TRANSFER)
"""The activities in which an actor does not wait."""

_NOTABLE_WAIT = 0.2  # share of a thread's time; shorter waits are noise, not a bottleneck
_NOTABLE_ALL_REDUCE = 0.3  # share of the updates' time

Bottleneck = Literal[
    "one program",  # acts and learns
    "taking turns",  # actors and learner wait for each other
    "actor-bound",
    "learner-bound",
    "all-reduce-bound",  # by the connection of the learner devices
    "balanced",
]
"""What limits the env steps per second."""

Shares = dict[str, dict[str, float]]
"""`{kind of thread: {activity: share of its time}}`; the shares of a kind add up to 1."""


class WallClock:
    """Divides one thread's wall time among activities, without gaps.

    `lap(activity)` records the time since the previous lap, so activities never nest and their
    shares add up to 1. `begin(activity)` tells the watchdog that a call has started which may hang.
    Both cost well under a microsecond, so the clock is always on.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.longest: dict[str, float] = {}  # call of each activity
        self.current: tuple[str, float] | None = None  # begun activity and its start
        self._last = time.perf_counter()

    def begin(self, activity: str) -> None:
        """Start an activity, which ends at the next lap."""
        self.current = (activity, time.perf_counter())

    def lap(self, activity: str) -> None:
        """Record the time since the last lap for an activity."""
        now = time.perf_counter()
        self.seconds[activity] = self.seconds.get(activity, 0.0) + now - self._last
        self._last = now
        if self.current is not None:
            begun, since = self.current
            # A first call begins as a compilation; it also shows how long the next one may take.
            for each in (begun, activity):
                self.longest[each] = max(self.longest.get(each, 0.0), now - since)
        self.current = None

    def longest_update(self) -> float:
        """Return the seconds of a learner cycle's updates, the most so far; any thread may ask."""
        longest, current = self.longest.get(UPDATE, 0.0), self.current
        if current is not None and current[0] in (UPDATE, COMPILE):
            longest = max(longest, time.perf_counter() - current[1])
        return longest

    def restart(self) -> None:
        """Drop the time since the last lap."""
        self._last = time.perf_counter()
        self.current = None


class TimeShares:
    """Shares of the threads' time since the last restart; reads clocks that other threads write."""

    def __init__(self, clocks: Mapping[str, Sequence[WallClock]]):
        """Start now, with the clocks of each kind of thread."""
        self._clocks = clocks
        self._start = self._seconds()

    def restart(self) -> None:
        """Drop the time before now."""
        self._start = self._seconds()

    def shares(self) -> Shares:
        """Return the shares since the start, of the kinds of threads that recorded any time."""
        shares = {}
        for kind, now in self._seconds().items():
            spent = {key: now[key] - self._start[kind].get(key, 0.0) for key in now}
            if (total := sum(spent.values())) > 0:
                shares[kind] = {key: seconds / total for key, seconds in spent.items()}
        return shares

    def _seconds(self) -> dict[str, dict[str, float]]:
        totals: dict[str, dict[str, float]] = {}
        for kind, clocks in self._clocks.items():
            total = totals.setdefault(kind, {})
            for clock in clocks:
                for activity, seconds in clock.seconds.copy().items():
                    total[activity] = total.get(activity, 0.0) + seconds
        return totals


def bottleneck(shares: Shares, *, all_reduce: float) -> Bottleneck | None:
    """Return what limits the env steps per second; None if the learner's time is not measured.

    Args:
        shares: the shares of the threads' time.
        all_reduce: the share of the updates' time in which learner devices average gradients.
    """
    actor, learner = shares.get("actor", {}), shares.get("learner", {})
    if not learner:
        return None
    if not actor:
        return "one program"
    learner_waits = learner.get(WAIT_FOR_TRAJECTORIES, 0.0)
    queue_waits = actor.get(WAIT_FOR_QUEUE, 0.0)
    networks_waits = actor.get(WAIT_FOR_NETWORKS, 0.0)
    if networks_waits > max(queue_waits, _NOTABLE_WAIT) and learner_waits > _NOTABLE_WAIT:
        return "taking turns"
    if learner_waits >= queue_waits + networks_waits and learner_waits > _NOTABLE_WAIT:
        return "actor-bound"
    if queue_waits + networks_waits > _NOTABLE_WAIT:
        return "all-reduce-bound" if all_reduce > _NOTABLE_ALL_REDUCE else "learner-bound"
    return "balanced"
