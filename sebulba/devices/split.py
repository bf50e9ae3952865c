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
    learner = config.learner
    if config.actor == "cpu":
        learner = tuple(range(len(devices))) if learner is None else learner
        return DevicePlan(actor=(_processor(),), learner=_pick("devices.learner", learner, devices))
    actor = (0,) if config.actor is None else config.actor
    if learner is None:
        learner = tuple(range(1, len(devices))) if len(devices) > 1 else (0,)
    return DevicePlan(
        actor=_pick("devices.actor", actor, devices),
        learner=_pick("devices.learner", learner, devices),
    )


def num_actor_devices(config: DevicesConfig) -> int:
    """Return the number of actor devices of a host."""
    return 1 if config.actor is None or config.actor == "cpu" else len(config.actor)


def _processor() -> jax.Device:
    """Return the host's processor as a device."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError as error:
        raise ConfigError(
            "devices.actor: expected JAX to have a device for cpu, got none. If JAX_PLATFORMS is"
            f" set, add cpu to it: JAX_PLATFORMS=cuda,cpu ({error})"
        ) from error


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
