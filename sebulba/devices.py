"""Which devices act and which learn, and how arrays get from one to the other."""

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from sebulba.agent import ActorStateSharding
from sebulba.config import DevicesConfig
from sebulba.errors import ConfigError
from sebulba.reductions import LEARNER_AXIS
from sebulba.types import PyTree

REPLICATED = PartitionSpec()
"""The whole array on every learner device."""
PER_DEVICE = PartitionSpec(LEARNER_AXIS)
"""Axis 0 is split over the learner devices."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DevicePlan:
    """The devices of this host, by role; a device may have both."""

    actor: tuple[jax.Device, ...]
    learner: tuple[jax.Device, ...]


def plan_devices(config: DevicesConfig, devices: Sequence[jax.Device]) -> DevicePlan:
    """Returns who acts and who learns.

    With one device it has both roles; with more, the first acts and the others learn, unless the
    config says otherwise.

    Raises:
        ConfigError: a position that does not exist, or one named twice for a role.
    """
    several = len(devices) > 1
    actor = (0,) if config.actor is None else config.actor
    learner = config.learner
    if learner is None:
        learner = tuple(range(1, len(devices))) if several else (0,)
    return DevicePlan(
        actor=_pick("devices.actor", actor, devices),
        learner=_pick("devices.learner", learner, devices),
    )


def _pick(
    name: str, positions: Sequence[int], devices: Sequence[jax.Device]
) -> tuple[jax.Device, ...]:
    listing = ", ".join(f"{i}: {device}" for i, device in enumerate(devices))
    if not positions:
        raise ConfigError(f"{name}: expected at least one device of ({listing}), got none")
    for position in positions:
        if not 0 <= position < len(devices):
            raise ConfigError(f"{name}: expected positions among ({listing}), got {position}")
    if len(set(positions)) < len(positions):
        raise ConfigError(f"{name}: expected each device once, got {list(positions)}")
    return tuple(devices[position] for position in positions)


class LearnerDevices:
    """The learner devices as a mesh, and the placing of arrays on them."""

    def __init__(self, devices: Sequence[jax.Device]):
        self.devices = tuple(devices)
        # A plain Mesh: `jax.make_mesh` would make the axis explicit in every array's type.
        self.mesh = Mesh(np.array(self.devices), (LEARNER_AXIS,))

    def __len__(self) -> int:
        return len(self.devices)

    def sharding(self, spec: PartitionSpec) -> NamedSharding:
        """Returns the sharding of arrays that lie on the learner devices as `spec` says."""
        return NamedSharding(self.mesh, spec)

    def split(self, tree: PyTree, *, axis: int = 0) -> PyTree:
        """Splits `axis` of every leaf evenly over the learner devices."""
        spec = PartitionSpec(*[None] * axis, LEARNER_AXIS)
        return jax.device_put(tree, self.sharding(spec))

    def replicate(self, tree: PyTree) -> PyTree:
        """Gives every learner device the whole of every leaf."""
        return jax.device_put(tree, self.sharding(REPLICATED))


def shard_per_env_leaves(
    actor_state: PyTree, sharding: ActorStateSharding, *, replicated: Sequence[str] = ()
) -> PyTree:
    """Splits every field of a dataclass of actor state on axis 0, but for those named.

    Args:
        actor_state: a dataclass; each leaf of a split field is `[B, ...]`.
        sharding: as `Agent.shard_actor_state` is given it.
        replicated: the fields that are not per environment, such as a key.
    """
    placed = {
        field.name: (sharding.replicate if field.name in replicated else sharding.split)(
            getattr(actor_state, field.name)
        )
        for field in dataclasses.fields(actor_state)
    }
    return dataclasses.replace(actor_state, **placed)


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
