"""Accounting for the threads' wall time, and what it says about the run."""

import time
from collections.abc import Mapping, Sequence

# Activities of actors.
ACT = "act"  # environment and inference in one jitted call
ENVIRONMENT = "environment"
INFERENCE = "inference"
TRANSFER = "transfer"
WAIT_FOR_NETWORKS = "wait for networks"
WAIT_FOR_QUEUE = "wait for queue"
# Activities of the learner.
UPDATE = "update"
COMPILE = "compile"  # announced, of actors too; what it takes is booked with what it was for
PUBLISH = "publish"
METRICS = "metrics"
AGREEMENT = "agreement of the hosts"  # announced only; booked with the metrics
CHECKPOINT = "checkpoint"
WAIT_FOR_TRAJECTORIES = "wait for trajectories"

Shares = dict[str, dict[str, float]]
"""Of each kind of thread, the share of its time by activity; each kind's shares add up to 1."""

_NOTABLE_WAIT = 0.2


class WallClock:
    """Divides one thread's wall time among activities, with nothing left over.

    `lap(activity)` books the time since the previous lap, so activities need no nesting and their
    shares add up to 1. What may never come back is announced with `begin` besides, for the
    watchdog. Either costs well under a microsecond.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.current: tuple[str, float] | None = None  # announced, and the moment it began
        self._last = time.perf_counter()

    def begin(self, activity: str) -> None:
        """Announces an activity; it is over at the next lap."""
        self.current = (activity, time.perf_counter())

    def lap(self, activity: str) -> None:
        """Books the time since the last lap."""
        now = time.perf_counter()
        self.seconds[activity] = self.seconds.get(activity, 0.0) + now - self._last
        self._last = now
        self.current = None

    def restart(self) -> None:
        """Begins here: what came before belongs to no activity."""
        self._last = time.perf_counter()
        self.current = None


class TimeShares:
    """The shares of all threads' time since a moment. Reads clocks that other threads write."""

    def __init__(self, clocks: Mapping[str, Sequence[WallClock]]):
        """Starts now.

        Args:
            clocks: of each kind of thread.
        """
        self._clocks = clocks
        self._start = self._seconds()

    def restart(self) -> None:
        """Forgets what was booked before now."""
        self._start = self._seconds()

    def shares(self) -> Shares:
        """Returns the shares since the start; a kind of thread that booked nothing is left out."""
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


def describe_bottleneck(shares: Shares) -> str:
    """Returns which part of a run binds its speed, and what to change."""
    actor, learner = shares.get("actor", {}), shares.get("learner", {})
    if not actor or not learner:
        return "too short to say what binds"
    learner_waits = learner.get(WAIT_FOR_TRAJECTORIES, 0.0)
    queue_waits = actor.get(WAIT_FOR_QUEUE, 0.0)
    networks_waits = actor.get(WAIT_FOR_NETWORKS, 0.0)
    if networks_waits > max(queue_waits, _NOTABLE_WAIT) and learner_waits > _NOTABLE_WAIT:
        return (
            f"actors and learner wait for each other ({networks_waits:.0%} and"
            f" {learner_waits:.0%} of their time): allow more learner.max_policy_lag"
        )
    if learner_waits >= queue_waits + networks_waits and learner_waits > _NOTABLE_WAIT:
        busiest = max((ACT, ENVIRONMENT, INFERENCE, TRANSFER), key=lambda key: actor.get(key, 0.0))
        return (
            f"the actors bind ({busiest}: {actor[busiest]:.0%} of their time; the learner waits"
            f" {learner_waits:.0%} of its own): more actor.threads_per_device, actor.num_envs or"
            " devices.actor"
        )
    if queue_waits + networks_waits > _NOTABLE_WAIT:
        return (
            f"the learner binds (update: {learner.get(UPDATE, 0.0):.0%} of its time; the actors"
            f" wait {queue_waits + networks_waits:.0%} of theirs): more devices.learner, or larger"
            " batches (actor.num_envs, learner.trajectories_per_cycle)"
        )
    return "actors and learner are balanced: faster or more devices for both"
