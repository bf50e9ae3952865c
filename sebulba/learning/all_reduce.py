"""Averages gradients over the learner devices, and measures how long that takes."""

import collections
import statistics
import time
from typing import TypeVar

import jax

from sebulba.config import LearnerConfig
from sebulba.devices.learner_devices import REPLICATED, LearnerDevices
from sebulba.devices.mapping import map_over_learner_devices
from sebulba.devices.memory_plan import num_bytes
from sebulba.ring.timing import AGREEMENT, COMPILE, UPDATE, WAIT_FOR_TRAJECTORIES, WallClock
from sebulba.toolkit.reductions import mean_over_learner_devices
from sebulba.types import Networks, PyTree

_CYCLES_BETWEEN_PROBES = 100
_FIRST_PROBES = 3
_KEPT_PROBES = 9
_Others = TypeVar("_Others")


def mean_of_gradients(
    gradients: Networks, others: _Others, *, dtype: str
) -> tuple[Networks, _Others]:
    """Return the means of gradients and of other numbers over all learner devices.

    Runs on each of them, in one all-reduce.

    Args:
        gradients: float arrays.
        others: arrays of any number type, averaged as they are.
        dtype: in which gradients cross between devices; their means have their own dtypes.
    """
    mean, others = mean_over_learner_devices((_in_dtype(gradients, dtype), others))
    return jax.tree.map(lambda leaf, like: leaf.astype(like.dtype), mean, gradients), others


def _in_dtype(gradients: Networks, dtype: str) -> PyTree:
    if dtype == "float32":  # Those of a network in a smaller dtype stay as they are.
        return gradients
    return jax.tree.map(lambda leaf: leaf.astype(dtype), gradients)


class AllReduce:
    """Times the mean of gradients over the learner devices, apart from the updates.

    Within an update, a timer would need to synchronise, which slows the update. So the networks,
    which have the shapes of the gradients, are averaged alone, by the same function, after the
    first learner cycle and every 100th. Before each timed mean another lets the hosts begin
    together.
    """

    def __init__(self, learner_devices: LearnerDevices, config: LearnerConfig, clock: WallClock):
        """Measure nothing yet.

        Args:
            learner_devices: of all hosts.
            config: of the learner.
            clock: of the learner's thread.
        """
        self.clock = clock
        self.is_lock_step = config.policy_lag == 0
        self.num_bytes = 0  # of the gradients of an update, as they leave a device
        self._dtype = config.gradients
        self._is_needed = len(learner_devices) > 1
        self._is_on_cpu = learner_devices.devices[0].platform == "cpu"
        self._next_cycle = 0
        self._durations: collections.deque[float] = collections.deque(maxlen=_KEPT_PROBES)
        self._mean = map_over_learner_devices(
            lambda networks: mean_of_gradients(networks, (), dtype=self._dtype)[:1],
            learner_devices,
            out_specs=(REPLICATED,),
        )

    @property
    def seconds(self) -> float | None:
        """The median of the latest measurements, for one update; None: not measured."""
        return statistics.median(self._durations) if self._durations else None

    def measure(self, networks: Networks, num_cycles: int) -> None:
        """Measure after this learner cycle, if it is the first or the last was long ago.

        All hosts do so after the same cycles.
        """
        if not self._is_needed or num_cycles < self._next_cycle:
            return
        self._next_cycle = num_cycles + _CYCLES_BETWEEN_PROBES
        is_first = not self._durations
        if is_first:
            # XLA on a CPU sends numbers of 16 bits as float32.
            dtype = "float32" if self._is_on_cpu else self._dtype
            self.num_bytes = num_bytes(jax.eval_shape(lambda: _in_dtype(networks, dtype)))
            self.clock.begin(COMPILE)
            self._run(networks)
        self.clock.begin(AGREEMENT)
        for _ in range(_FIRST_PROBES if is_first else 1):
            self._run(networks)
            begin = time.perf_counter()
            self._run(networks)
            self._durations.append(time.perf_counter() - begin)

    def _run(self, networks: Networks) -> None:
        jax.block_until_ready(self._mean(networks))


class AllReduceUse:
    """What the all-reduces of the gradients take in a learner cycle, since the last restart."""

    def __init__(self, all_reduce: AllReduce):
        """Start now, before the first learner cycle."""
        self._all_reduce = all_reduce
        self.restart(num_cycles=0, num_updates=0)

    def restart(self, *, num_cycles: int, num_updates: int) -> None:
        """Drop what was before these learner cycles and updates of the run."""
        self._since = self._now(num_cycles, num_updates)

    def columns(self, *, num_cycles: int, num_updates: int) -> dict[str, float]:
        """Return the bytes and seconds of a learner cycle, and what they mean for its length.

        `share` is their share of the time of the updates. `overlap` is the share of them that
        acting hides, since the learner would otherwise wait for trajectories for so long; in
        lock-step it is 0, since actors do not act during an update.

        Args:
            num_cycles: learner cycles of the run so far.
            num_updates: its updates so far.

        Returns:
            Nothing with one learner device, or before the first measurement.
        """
        seconds_of_one = self._all_reduce.seconds
        cycles, updates, update_s, waited_s = (
            now - since
            for now, since in zip(self._now(num_cycles, num_updates), self._since, strict=True)
        )
        if seconds_of_one is None or cycles == 0:
            return {}
        seconds = updates * seconds_of_one
        hidden_s = 0.0 if self._all_reduce.is_lock_step else min(waited_s, seconds)
        return {
            "bytes": updates * self._all_reduce.num_bytes / cycles,
            "seconds": seconds / cycles,
            "share": min(1.0, seconds / update_s) if update_s else 0.0,
            "overlap": hidden_s / seconds if seconds else 0.0,
        }

    def _now(self, num_cycles: int, num_updates: int) -> tuple[float, ...]:
        spent = self._all_reduce.clock.seconds
        return (
            num_cycles,
            num_updates,
            spent.get(UPDATE, 0.0),
            spent.get(WAIT_FOR_TRAJECTORIES, 0.0),
        )
