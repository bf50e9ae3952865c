"""What each remote actor does, for rows of metrics, the summary and the console."""

from collections.abc import Mapping
from typing import Any

from sebulba.remote.collector import RemoteCollector
from sebulba.remote.counts import RemoteCounts
from sebulba.ring.clocks import WAIT_FOR_NETWORKS, WAIT_FOR_QUEUE, TimeShares
from sebulba.ring.ring import Ring

Numbers = dict[str, Any]
"""Of one remote actor: numbers, None for what is not measured, and its machine."""


class RemoteActors:
    """What each remote actor of this host has done since the last restart.

    The ring does not know which actors are remote: its ledger and its clocks have their env steps
    and their waits, as those of any actor. Their collectors count the rest.
    """

    def __init__(self, ring: Ring):
        """Start now; env steps per second are measured from the first restart on."""
        self._progress = ring.progress
        self._ledger = ring.ledger
        collectors = {actor.actor_id: actor.collector for actor in ring.actors}
        self._collectors = {
            actor_id: collector
            for actor_id, collector in collectors.items()
            if isinstance(collector, RemoteCollector)
        }
        self._shares = TimeShares(
            {str(actor_id): [ring.actors[actor_id].clock] for actor_id in self._collectors}
        )
        self._before = self._now()
        self._at: float | None = None

    def restart(self) -> None:
        """Drop what was before, at the learner cycle that was counted last."""
        self._at = self._progress.counted_at
        self._before = self._now()
        self._shares.restart()

    def numbers(self) -> dict[int, Numbers]:
        """Return the numbers of each remote actor by its number on this host; nothing without any.

        `env_steps` and `restarts` are those so far, the others since the restart. CPU seconds are
        the mean of a trajectory.
        """
        shares = self._shares.shares()
        seconds = 0.0 if self._at is None else self._progress.counted_at - self._at
        numbers: dict[int, Numbers] = {}
        for actor_id, (env_steps, now) in self._now().items():
            env_steps_before, before = self._before[actor_id]
            waits = shares.get(str(actor_id))
            numbers[actor_id] = {
                "machine": now.machine,
                "restarts": now.num_restarts,
                "env_steps": env_steps,
                "steps_per_second": _per(env_steps - env_steps_before, seconds),
                "waits": waits
                and waits.get(WAIT_FOR_NETWORKS, 0.0) + waits.get(WAIT_FOR_QUEUE, 0.0),
                "bytes_sent": now.bytes_sent - before.bytes_sent,
                "bytes_received": now.bytes_received - before.bytes_received,
            }
            num_cycles = now.num_cycles - before.num_cycles
            for name in ("process_cpu_s", "thread_cpu_s"):
                spent = getattr(now, name) - getattr(before, name)
                numbers[actor_id][name] = _per(spent, num_cycles)
        return numbers

    def _now(self) -> dict[int, tuple[int, RemoteCounts]]:
        """Return the env steps learned from each remote actor, and its collector's counts."""
        accounts = self._ledger.balance()
        return {
            actor_id: (accounts[actor_id]["learned"], collector.counter.counts)
            for actor_id, collector in self._collectors.items()
        }


def describe_remote_actors(actors: Mapping[int, Numbers]) -> list[str]:
    """Return a table for the console, with a line for each actor; nothing without any.

    Args:
        actors: the summary's `remote_actors`.
    """
    if not actors:
        return []
    columns = {  # name, right-aligned: key, factor to its unit, format
        "  steps/s": ("steps_per_second", 1.0, ",.0f"),
        "waits": ("waits", 1.0, ".0%"),
        "restarts": ("restarts", 1.0, ",.0f"),
        "  MB out": ("bytes_sent", 1e-6, ",.1f"),
        "   MB in": ("bytes_received", 1e-6, ",.1f"),
        " there": ("process_cpu_s", 1e3, ",.1f"),
        "  here": ("thread_cpu_s", 1e3, ",.1f"),
    }
    lines = [
        "remote actors, with CPU milliseconds for a trajectory there and here:",
        "  ".join(("actor", *columns, "machine")),
    ]
    for actor_id, numbers in actors.items():
        cells = [f"{actor_id:>5}"]
        for name, (key, factor, kind) in columns.items():
            value = numbers[key]
            text = "-" if value is None else format(value * factor, kind)
            cells.append(f"{text:>{len(name)}}")
        lines.append("  ".join((*cells, numbers["machine"] or "-")))
    return lines


def _per(value: float, count: float) -> float | None:
    return value / count if count > 0 else None
