"""Assigns the devices to the roles: actor devices and learner devices."""

import dataclasses
from collections.abc import Sequence

import jax

from sebulba.config import DevicesConfig
from sebulba.devices.learner_devices import LearnerDevices
from sebulba.errors import ConfigError


@dataclasses.dataclass(frozen=True, kw_only=True)
class DevicePlan:
    """The devices of this host by role; a device may have both roles."""

    actor: tuple[jax.Device, ...]
    learner: tuple[jax.Device, ...]


def plan_devices(config: DevicesConfig, devices: Sequence[jax.Device]) -> DevicePlan:
    """Return the devices of each role.

    Default: one device has both roles; of several, the first acts and the others learn.

    Raises:
        ConfigError: a position does not exist, or a role names one twice.
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


def plan_learner_devices(config: DevicesConfig) -> LearnerDevices:
    """Return the learner devices of all hosts; the config names the same positions on each.

    Raises:
        ConfigError: `plan_devices` fails for a host.
    """
    hosts = [
        plan_devices(config, jax.local_devices(process_index=host)).learner
        for host in range(jax.process_count())
    ]
    return LearnerDevices(hosts[jax.process_index()], of_all_hosts=hosts)
