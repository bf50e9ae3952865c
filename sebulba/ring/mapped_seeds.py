"""Runs of several seeds as one program, whose arrays have an axis of seeds.

An accelerator needs as many launches for all seeds as for one. Every seed keeps a ring of its own,
which counts and reports its cycles as if it ran alone; its arrays are taken from the common ones
when they are asked for. A seed that has ended leaves: the program still computes it, and nobody
reads it.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sebulba.devices.learner_devices import REPLICATED
from sebulba.errors import ConfigError
from sebulba.pytree import is_key
from sebulba.ring.anakin import Anakin, act_cycles_of
from sebulba.ring.calls import Begin, Call, Calls, with_equal_updates
from sebulba.ring.clocks import PUBLISH
from sebulba.ring.one_program import ProgramOfCycles, RecordedCycle, with_seeds
from sebulba.ring.records import DueTimes
from sebulba.ring.ring import Observer, Ring, annotate_errors, where_learner
from sebulba.ring.update import STATE_SPECS
from sebulba.types import PyTree


def check_mapping(first: Ring, ring: Ring) -> None:
    """Check that two rings, each of which can be one program, can be one together.

    Raises:
        ConfigError: they cannot.
    """
    if act_cycles_of(first) != act_cycles_of(ring):
        raise ConfigError(
            "run.seeds: mapped needs environments that step with the same function for every seed;"
            " got another. Set run.seeds in_turn"
        )


class MappedSeeds:
    """Runs learner cycles of several rings that differ in their seed, in common calls."""

    def __init__(self, rings: Sequence[Ring], due: DueTimes):
        """Stack the arrays of the seeds.

        Args:
            rings: for each of which `check_mapping` passes, at the same learner cycle and with the
                same programs; the `end` of none is set.
            due: where a call ends, by the env steps and learner cycles of a seed.
        """
        self._anakins = [Anakin(ring, due) for ring in rings]
        self.running = set(range(len(rings)))  # numbers of those that have not left
        first = self._anakins[0]
        learner_devices = rings[0].learner.learner_devices
        states = jax.tree.map(learner_devices.sharding, STATE_SPECS)
        replicated = learner_devices.sharding(REPLICATED)
        of_seed = (states, replicated, first.shardings, replicated)
        stacked = _stacked([anakin.begin() for anakin in self._anakins])
        self._begin: Begin = jax.device_put(stacked, with_seeds(of_seed))
        self._take = jax.jit(
            lambda tree, seed: jax.tree.map(
                lambda leaf: jax.lax.dynamic_index_in_dim(leaf, seed, keepdims=False), tree
            ),
            out_shardings=(of_seed, replicated),
        )
        self._calls = Calls(clocks=[ring.learner.clock for ring in rings], begin=self._begin)

    def run(self, observers: Sequence[Sequence[Observer]]) -> None:
        """Run learner cycles of all seeds until each of them has left.

        A seed leaves when its `end` is set. It also leaves before a cycle with data or updates that
        are not finite: its actors and its learner are then at the beginning of that cycle.

        Args:
            observers: those of each ring.
        """
        while self.running:
            self.run_call(observers)

    def run_call(self, observers: Sequence[Sequence[Observer]]) -> None:
        """Wait for a call of learner cycles, and count and report them for each seed."""
        first = self._anakins[min(self.running)].ring.learner
        with annotate_errors(lambda: where_learner(first)):
            call, recorded = self._calls.next(self)
        self._begin = call.end
        for number in sorted(self.running):
            ring, is_usable = self._anakins[number].ring, False
            of_seed = jax.tree.map(lambda leaf, number=number: leaf[:, number], recorded)
            # What an observer raises ends its own run.
            with ring.end.collecting(), annotate_errors(lambda: where_learner(ring.learner)):  # noqa: B023 - used in this turn
                is_usable = self._count(number, call, of_seed, observers[number])
            if ring.end.is_set or not is_usable:
                self._leave(number)

    def begin(self) -> Begin:
        """Return what the next call starts from; see `Cycles`."""
        return self._begin

    def program(self, num_updates: int) -> ProgramOfCycles:
        """Return the mapped program; see `Cycles`."""
        return self._anakins[0].program(num_updates, self._begin)

    def next_cycles(self, after: Call | None, most: int) -> tuple[int, int]:
        """Return the cycles until something may be due for a seed; see `Cycles`."""
        of_seeds = [self._anakins[number].cycles_until_due(after) for number in self.running]
        if not any(of_seeds):
            return 0, 0
        # A seed whose run may end in the call before may also be one cycle before that.
        left = min(each or 1 for each in of_seeds)
        learner = self._anakins[min(self.running)].ring.learner
        first = learner.num_cycles + (0 if after is None else after.num_cycles)
        return with_equal_updates(learner.programs.agent, first, min(most, left))

    def _count(
        self, number: int, call: Call, recorded: RecordedCycle, observers: Sequence[Observer]
    ) -> bool:
        """Count and report the cycles of a seed; return whether all of the call were usable."""
        anakin = self._anakins[number]
        ring, learner = anakin.ring, anakin.ring.learner
        with ring.in_cycle():
            counted = anakin.count(recorded)
            num_done, is_complete = len(counted), len(counted) == call.num_cycles
            if num_done == 0:
                return False
            end = call if is_complete else self._calls.repeat(call, num_done)
            learner.advance(num_cycles=num_done, num_updates=num_done * call.num_updates)
            learner.defer_arrays(
                lambda: anakin.arrive(*self._take((end.end, end.networks), np.int32(number)))
            )
            learner.clock.lap(PUBLISH)
        if len(learner.learner_devices) > 1:
            learner.set_deferred()  # Observers compare the devices.
        ring.report(counted, observers)
        return is_complete

    def _leave(self, number: int) -> None:
        """Give a seed its own arrays, and its actors its point if its run is to continue."""
        anakin = self._anakins[number]
        with anakin.ring.end.collecting():
            anakin.ring.learner.set_deferred()
        if not anakin.ring.end.is_set:
            anakin.give_to_actors()
        self.running.remove(number)


def _stacked(trees: Sequence[PyTree]) -> PyTree:
    """Return trees of arrays as one whose leaves `[S, ...]` are in host memory, keys excepted."""

    def stack(*leaves: Any) -> Any:
        if not is_key(leaves[0]):
            return np.stack([np.asarray(leaf) for leaf in leaves])
        data = jnp.stack([jax.random.key_data(leaf) for leaf in leaves])
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaves[0]))

    return jax.tree.map(stack, *trees)
