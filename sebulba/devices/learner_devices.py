"""The learner devices as one mesh, and moving arrays to and from them."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from sebulba.toolkit.reductions import LEARNER_AXIS
from sebulba.types import PyTree

REPLICATED = PartitionSpec()
"""The complete array is on every learner device."""
PER_DEVICE = PartitionSpec(LEARNER_AXIS)
"""Axis 0 is split over the learner devices."""


class LearnerDevices:
    """The learner devices of all hosts as a mesh, in the order of the hosts.

    A host places its arrays on its own devices, without communication, as its share of a global
    array. A split axis is `num_hosts` times as long in the global array. Replicated arrays may
    differ between hosts, since each device uses its own buffer: actor ids and keys do. With a
    single learner device, `split` and `replicate` return arrays that are on it as they are. Of a
    `jax.ShapeDtypeStruct` they return the global one with its sharding, to compile programs for
    devices that are not here.
    """

    def __init__(
        self,
        devices: Sequence[jax.Device],
        *,
        of_all_hosts: Sequence[Sequence[jax.Device]] | None = None,
    ):
        """Build the mesh.

        Args:
            devices: of this host.
            of_all_hosts: of each host, in equal numbers; None: this is the only host.
        """
        self.devices = tuple(devices)
        self.num_hosts = 1 if of_all_hosts is None else len(of_all_hosts)
        every = [self.devices] if of_all_hosts is None else of_all_hosts
        # Not `jax.make_mesh`, whose axes are Explicit: the sharding would be part of every type.
        self.mesh = Mesh(np.concatenate([np.array(each) for each in every]), (LEARNER_AXIS,))
        self._local_mesh = Mesh(np.array(self.devices), (LEARNER_AXIS,))
        self._only: jax.sharding.Sharding | None = None
        if self.mesh.size == 1:
            self._only = jax.sharding.SingleDeviceSharding(self.devices[0])

    def __len__(self) -> int:
        return self.mesh.size

    def sharding(self, spec: PartitionSpec) -> NamedSharding:
        """Return the sharding over the learner devices with this spec."""
        return NamedSharding(self.mesh, spec)

    def split(self, tree: PyTree, *, axis: int = 0) -> PyTree:
        """Split `axis` of every leaf evenly over this host's learner devices."""
        return self._place(tree, PartitionSpec(*[None] * axis, LEARNER_AXIS))

    def replicate(self, tree: PyTree) -> PyTree:
        """Copy every leaf to every learner device of this host."""
        return self._place(tree, REPLICATED)

    def share_of_host(self, tree: PyTree) -> PyTree:
        """Return this host's share of global arrays, without a copy."""
        return self._view(tree, self._local_mesh, lambda size: size // self.num_hosts)

    def join_hosts(self, tree: PyTree) -> PyTree:
        """Return the global arrays of this host's shares, without a copy."""
        return self._view(tree, self.mesh, lambda size: size * self.num_hosts)

    def _place(self, tree: PyTree, spec: PartitionSpec) -> PyTree:
        if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(tree)):
            return jax.tree.map(functools.partial(self._placed_shape, spec=spec), tree)
        # For 20 arrays, `device_put` takes half a millisecond to find that they are there.
        if self._only is not None and all(map(self._is_there, jax.tree.leaves(tree))):
            return tree
        return self.join_hosts(jax.device_put(tree, NamedSharding(self._local_mesh, spec)))

    def _placed_shape(
        self, leaf: jax.ShapeDtypeStruct, *, spec: PartitionSpec
    ) -> jax.ShapeDtypeStruct:
        """Return the global shape of what is placed: the devices need not be here."""
        names = [*spec, *[None] * (leaf.ndim - len(spec))]
        shape = [
            size if name is None else size * self.num_hosts
            for size, name in zip(leaf.shape, names, strict=True)
        ]
        return jax.ShapeDtypeStruct(shape, leaf.dtype, sharding=self._only or self.sharding(spec))

    def _is_there(self, leaf: Any) -> bool:
        return isinstance(leaf, jax.Array) and leaf.committed and leaf.sharding == self._only

    def _view(self, tree: PyTree, mesh: Mesh, resize: Callable[[int], int]) -> PyTree:
        """Return arrays over `mesh` with the same buffers and a resized split axis."""
        if self.num_hosts == 1:
            return tree

        def view(leaf: jax.Array) -> jax.Array:
            if not isinstance(leaf.sharding, NamedSharding):
                return leaf
            spec = leaf.sharding.spec
            names = [*spec, *[None] * (leaf.ndim - len(spec))]
            shape = [
                size if name is None else resize(size)
                for size, name in zip(leaf.shape, names, strict=True)
            ]
            buffers = [shard.data for shard in leaf.addressable_shards]
            return jax.make_array_from_single_device_arrays(
                tuple(shape), NamedSharding(mesh, spec), buffers
            )

        return jax.tree.map(view, tree)


def fetch_replicated(tree: PyTree, device: jax.Device) -> PyTree:
    """Return replicated arrays as arrays on `device`, without a copy if it is a learner device."""

    def fetch(leaf: jax.Array) -> jax.Array:
        if leaf.sharding.device_set == {device}:
            return leaf
        shards = {shard.device: shard.data for shard in leaf.addressable_shards}
        if device in shards:
            # `device_put` takes several times as long to find that the array is there.
            return shards[device]
        return jax.device_put(leaf.addressable_shards[0].data, device)

    return jax.tree.map(fetch, tree)
