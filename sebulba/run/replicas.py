"""Checks that the learner devices hold the same networks and optimizer state."""

import jax
import jax.numpy as jnp

from sebulba.devices.learner_devices import REPLICATED
from sebulba.devices.mapping import map_over_learner_devices
from sebulba.pytree import without_key
from sebulba.ring.learner import Learner
from sebulba.ring.records import CycleReport
from sebulba.ring.ring import Observer
from sebulba.toolkit.reductions import LEARNER_AXIS
from sebulba.types import PyTree

_CYCLES_BETWEEN_CHECKS = 100


class ReplicaError(RuntimeError):
    """Learner devices hold different networks or optimizer states."""


class ReplicaCheck(Observer):
    """Compares checksums of the replicated state over the learner devices of all hosts.

    `Agent.optimize` must return the same on every device. If it does not, each device follows
    networks of its own, of which only the first's are published and saved, with no other symptom.
    """

    def __init__(self, learner: Learner):
        def spreads(networks: PyTree, opt_state: PyTree) -> tuple[jax.Array]:
            leaves = jax.tree.leaves((networks, opt_state))
            sums = jnp.stack([_checksum(leaf) for leaf in leaves])
            highest, lowest = (
                reduce(sums, LEARNER_AXIS) for reduce in (jax.lax.pmax, jax.lax.pmin)
            )
            return (highest != lowest,)

        # Not with `pmap`, which needs an argument that is split over the devices.
        self._differ = map_over_learner_devices(
            spreads, learner.learner_devices, out_specs=(REPLICATED,)
        )
        self._learner = learner
        self._is_needed = len(learner.learner_devices) > 1
        self._next_cycle = 0

    def on_cycle(self, report: CycleReport) -> None:
        """Check the state after this learner cycle, if it is the first or the last was long ago.

        Raises:
            ReplicaError: the checksums of a leaf differ.
        """
        num_cycles, state = report.num_cycles, self._learner.state
        if not self._is_needed or num_cycles < self._next_cycle:
            return
        self._next_cycle = num_cycles + _CYCLES_BETWEEN_CHECKS
        replicated = (state.networks, state.opt_state)
        if not jax.tree.leaves(replicated):  # the agent learns nothing
            return
        (differ,) = jax.device_get(self._differ(*replicated))
        if differ.any():
            paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(replicated)]
            part, *rest = paths[int(differ.argmax())]
            where = ("networks", "opt_state")[part.idx]
            raise ReplicaError(
                f"{where}{jax.tree_util.keystr(tuple(rest))}: expected the same values on every"
                f" learner device after cycle {num_cycles - 1}, got different ones ({differ.sum()}"
                f" of {differ.size} leaves differ). Agent.optimize must not depend on the device"
            )


def _checksum(leaf: jax.Array) -> jax.Array:
    """Return the sum `[]` of the bits of all elements, modulo 2**32."""
    leaf = without_key(leaf)
    if leaf.dtype == bool:
        leaf = leaf.astype(jnp.uint8)
    bits = jax.lax.bitcast_convert_type(leaf, jnp.dtype(f"uint{8 * leaf.dtype.itemsize}"))
    # Signed, for which collectives have a maximum everywhere.
    return jnp.sum(bits.astype(jnp.uint32), dtype=jnp.uint32).astype(jnp.int32)
