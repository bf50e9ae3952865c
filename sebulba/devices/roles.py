"""Assigns the devices to the roles: actor devices and learner devices."""

import dataclasses
from collections.abc import Sequence

import jax

from sebulba.config import DevicesConfig
from sebulba.devices.learner_devices import LearnerDevices
from sebulba.errors import ConfigError


def check_platforms() -> None:
    """Let JAX look for devices.

    Raises:
        ConfigError: there is none of a platform that JAX_PLATFORMS names.
    """
    try:
        jax.local_devices()
    except (RuntimeError, AssertionError) as error:  # the latter without a message
        platforms = jax.config.jax_platforms  # type: ignore[attr-defined]
        reason = next(iter(str(error).splitlines()), "its plugin is missing or found none")
        raise ConfigError(
            f"JAX_PLATFORMS: expected platforms that have a device here, got {platforms}: {reason}."
            " Unset it, or install JAX for that platform"
        ) from error


@dataclasses.dataclass(frozen=True, kw_only=True)
class Roles:
    """Who acts and who learns on this host; a device may have both roles."""

    actor: tuple[jax.Device, ...]
    learner: tuple[jax.Device, ...]
    learner_devices: LearnerDevices  # those of all hosts


def assign_devices(
    config: DevicesConfig, devices: Sequence[jax.Device] | None = None, *, num_envs: int
) -> Roles:
    """Return the devices of each role.

    Args:
        config: names positions, the same on every host.
        devices: this host's, which is then the only host; None: all devices of all hosts.
        num_envs: environments of a trajectory, which the learner devices divide.

    Raises:
        ConfigError: a position does not exist, or a role names one twice, on any host.
    """
    if devices is not None:
        actor, learner = pick_devices(config, devices, num_envs=num_envs)
        return Roles(actor=actor, learner=learner, learner_devices=LearnerDevices(learner))
    hosts = [jax.local_devices(process_index=host) for host in range(jax.process_count())]
    return assign_devices_of_hosts(config, hosts, host=jax.process_index(), num_envs=num_envs)


def assign_devices_of_hosts(
    config: DevicesConfig, hosts: Sequence[Sequence[jax.Device]], *, host: int, num_envs: int
) -> Roles:
    """Return the devices of each role on a host.

    Args:
        config: names positions, the same on every host.
        hosts: the devices of each host.
        host: the position of the host in `hosts`.
        num_envs: environments of a trajectory, which the learner devices divide.

    Raises:
        ConfigError: a position does not exist, or a role names one twice, on any host.
    """
    picked = [pick_devices(config, devices, num_envs=num_envs) for devices in hosts]
    actor, learner = picked[host]
    of_all_hosts = [of_host for _, of_host in picked] if len(hosts) > 1 else None
    return Roles(
        actor=actor,
        learner=learner,
        learner_devices=LearnerDevices(learner, of_all_hosts=of_all_hosts),
    )


def pick_devices(
    config: DevicesConfig, devices: Sequence[jax.Device], *, num_envs: int
) -> tuple[tuple[jax.Device, ...], tuple[jax.Device, ...]]:
    """Return the actor devices and the learner devices among those of one host.

    Default: one device has both roles; of several, the first acts, and as many of the others learn
    as can divide `num_envs`.

    Raises:
        ConfigError: a position does not exist, or a role names one twice.
    """
    learner = config.learner
    if config.actor == "cpu":
        learner = _dividing(range(len(devices)), num_envs) if learner is None else learner
        return (_processor(),), _pick("devices.learner", learner, devices)
    actor = (0,) if config.actor is None else config.actor
    if learner is None:
        learner = _dividing(range(1, len(devices)), num_envs) if len(devices) > 1 else (0,)
    return (
        _pick("devices.actor", actor, devices),
        _pick("devices.learner", learner, devices),
    )


def _dividing(positions: Sequence[int], num_envs: int) -> tuple[int, ...]:
    """Return as many of the positions as divide the environments."""
    counts = range(len(positions), 0, -1)
    return tuple(positions[: next((count for count in counts if num_envs % count == 0), 0)])


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
