"""Measure how long averaging gradients over the learner devices takes."""

import collections
import statistics
import time

import jax

from sebulba.devices.learner_devices import REPLICATED
from sebulba.devices.mapping import map_over_learner_devices
from sebulba.devices.memory import num_bytes
from sebulba.ring.clocks import AGREEMENT, COMPILE, UPDATE, WAIT_FOR_TRAJECTORIES
from sebulba.ring.learner import Learner
from sebulba.ring.progress import Progress
from sebulba.ring.records import CycleReport
from sebulba.ring.ring import Observer
from sebulba.ring.update import in_dtype, mean_of_gradients
from sebulba.types import Networks

_CYCLES_BETWEEN_PROBES = 100
_FIRST_PROBES = 3
_KEPT_PROBES = 9


class AllReduceProbe(Observer):
    """Times the mean of gradients over the learner devices, apart from the updates.

    Within an update, a timer would need to synchronise, which slows the update. So the networks,
    which have the shapes of the gradients, are averaged alone, by the same function, after the
    first learner cycle and every 100th. Before each timed mean another lets the hosts begin
    together.
    """

    def __init__(self, learner: Learner, *, dtype: str, is_lock_step: bool):
        """Measure nothing yet.

        Args:
            learner: the learner whose networks are averaged and whose clock measures.
            dtype: the dtype in which gradients cross between devices.
            is_lock_step: whether actors do not act during an update.
        """
        learner_devices = learner.learner_devices
        self._learner = learner
        self.clock = learner.clock
        self.is_lock_step = is_lock_step
        self.num_bytes = 0  # of the gradients of an update, as they leave a device
        self._dtype = dtype
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

    def on_cycle(self, report: CycleReport) -> None:
        """Measure after this learner cycle, if it is the first or the last was long ago.

        All hosts do so after the same cycles.
        """
        if not self._is_needed or report.num_cycles < self._next_cycle:
            return
        self._next_cycle = report.num_cycles + _CYCLES_BETWEEN_PROBES
        networks = self._learner.state.networks
        is_first = not self._durations
        if is_first:
            # XLA on a CPU sends numbers of 16 bits as float32.
            dtype = "float32" if self._is_on_cpu else self._dtype
            self.num_bytes = num_bytes(jax.eval_shape(lambda: in_dtype(networks, dtype)))
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

    def __init__(self, probe: AllReduceProbe, progress: Progress):
        """Start now."""
        self._probe = probe
        self._progress = progress
        self.restart()

    def restart(self) -> None:
        """Drop what was before."""
        self._since = self._now()

    def columns(self) -> dict[str, float]:
        """Return the bytes and seconds of a learner cycle, and what they mean for its length.

        `share` is their share of the time of the updates. `overlap` is the share of them that
        acting hides, since the learner would otherwise wait for trajectories for so long; in
        lock-step it is 0, since actors do not act during an update.

        Returns:
            Nothing with one learner device, or before the first measurement.
        """
        seconds_of_one = self._probe.seconds
        cycles, updates, update_s, waited_s = (
            now - since for now, since in zip(self._now(), self._since, strict=True)
        )
        if seconds_of_one is None or cycles == 0:
            return {}
        seconds = updates * seconds_of_one
        hidden_s = 0.0 if self._probe.is_lock_step else min(waited_s, seconds)
        return {
            "bytes": updates * self._probe.num_bytes / cycles,
            "seconds": seconds / cycles,
            "share": min(1.0, seconds / update_s) if update_s else 0.0,
            "overlap": hidden_s / seconds if seconds else 0.0,
        }

    def _now(self) -> tuple[float, ...]:
        spent = self._probe.clock.seconds
        return (
            self._progress.cycles,
            self._progress.updates,
            spent.get(UPDATE, 0.0),
            spent.get(WAIT_FOR_TRAJECTORIES, 0.0),
        )
