"""The learner devices as one mesh, and how arrays get onto them and off."""

from collections.abc import Callable, Sequence

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from sebulba.toolkit.reductions import LEARNER_AXIS
from sebulba.types import PyTree

REPLICATED = PartitionSpec()
"""The whole array on every learner device."""
PER_DEVICE = PartitionSpec(LEARNER_AXIS)
"""Axis 0 is split over the learner devices."""


class LearnerDevices:
    """The learner devices as a mesh, and the placing of arrays on them.

    The mesh is of all hosts, in their order. A host places what it has on its own devices, and gets
    its share of the array that all hosts place together: what is split is as many times as long as
    there are hosts, and what is replicated may differ from host to host where no result depends on
    it being equal (an actor's number, its key).
    """

    def __init__(
        self,
        devices: Sequence[jax.Device],
        *,
        of_all_hosts: Sequence[Sequence[jax.Device]] | None = None,
    ):
        """Makes the mesh.

        Args:
            devices: this host's.
            of_all_hosts: each host's, as many of each; default: this host is alone.
        """
        self.devices = tuple(devices)
        self.num_hosts = 1 if of_all_hosts is None else len(of_all_hosts)
        every = [self.devices] if of_all_hosts is None else of_all_hosts
        # A plain Mesh: `jax.make_mesh` would make the axis explicit in every array's type.
        self.mesh = Mesh(np.concatenate([np.array(each) for each in every]), (LEARNER_AXIS,))
        self._local_mesh = Mesh(np.array(self.devices), (LEARNER_AXIS,))

    def __len__(self) -> int:
        return self.mesh.size

    def sharding(self, spec: PartitionSpec) -> NamedSharding:
        """Returns the sharding of arrays that lie on the learner devices as `spec` says."""
        return NamedSharding(self.mesh, spec)

    def split(self, tree: PyTree, *, axis: int = 0) -> PyTree:
        """Splits `axis` of every leaf evenly over this host's learner devices."""
        return self._place(tree, PartitionSpec(*[None] * axis, LEARNER_AXIS))

    def replicate(self, tree: PyTree) -> PyTree:
        """Gives every learner device of this host the whole of every leaf."""
        return self._place(tree, REPLICATED)

    def share_of_host(self, tree: PyTree) -> PyTree:
        """Returns this host's share of arrays on the learner devices, without a copy."""
        return self._view(tree, self._local_mesh, lambda size: size // self.num_hosts)

    def join_hosts(self, tree: PyTree) -> PyTree:
        """Returns the arrays of which each host holds its share, without a copy."""
        return self._view(tree, self.mesh, lambda size: size * self.num_hosts)

    def _place(self, tree: PyTree, spec: PartitionSpec) -> PyTree:
        return self.join_hosts(jax.device_put(tree, NamedSharding(self._local_mesh, spec)))

    def _view(self, tree: PyTree, mesh: Mesh, resize: Callable[[int], int]) -> PyTree:
        """Returns the same buffers as arrays over `mesh`, their split axis of another size."""
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
    """Returns arrays that are whole on every learner device as arrays on `device`.

    No copy is made where a learner device is `device` itself.
    """

    def fetch(leaf: jax.Array) -> jax.Array:
        shards = {shard.device: shard.data for shard in leaf.addressable_shards}
        if device in shards:
            # As it is: `device_put` takes several times as long to find that nothing has to move.
            return shards[device]
        return jax.device_put(leaf.addressable_shards[0].data, device)

    return jax.tree.map(fetch, tree)
