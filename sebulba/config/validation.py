"""Check the values of a config, as far as that needs no device."""

import functools
from collections.abc import Iterator
from typing import Any

from sebulba.agent import AgentSettings, declared
from sebulba.config.coercion import coerce
from sebulba.config.schema import Config, key_types
from sebulba.errors import ConfigError
from sebulba.toolkit.settings import ReplayConfig


def value_of(config: Config, key: str) -> Any:
    """Return the value of a dotted key."""
    return functools.reduce(getattr, key.split("."), config)


def validate(config: Config) -> None:
    """Check every value of a config that was made in Python, as far as that needs no device.

    Raises:
        ConfigError: the key of the first wrong value, what was expected and what came.
    """
    try:
        declared = key_types(type(config.agent))
    except NameError:  # The class of an agent's object may name types for type checkers only.
        declared = key_types(type(None))
    for key, annotation in declared.items():
        try:
            coerce(value_of(config, key), annotation)
        except ConfigError as error:
            raise ConfigError(f"{key}: {error}") from None
        except TypeError:  # It may also have settings of types that no config file can have.
            continue
    for key, message in problems(config):
        raise ConfigError(f"{key}: {message}")


def check_repeatable(config: Config) -> None:
    """Check that a run can be repeated from its config.

    Raises:
        ConfigError: the run was free-running.
    """
    if not config.has_fixed_order:
        raise ConfigError(
            "learner.policy_lag: expected a number of learner cycles, got null; a free-running run"
            " is not repeatable"
        )


def problems(config: Config) -> Iterator[tuple[str, str]]:
    """Yield key and error message of every wrong value that its type allows."""
    for key in ("env.suite", "env.id", "run_dir", "init_from"):
        if value_of(config, key) == "":
            yield key, "expected a name, got an empty string"
    if config.actor.rollout == "episodes" and config.actor.trajectory_length < 2:
        yield (
            "actor.trajectory_length",
            "expected at least 2 with actor.rollout: episodes (the env steps of the longest episode"
            f" and 1 for the reset), got {config.actor.trajectory_length}",
        )
    resume = config.resume
    if resume is not None:
        if resume not in ("latest", "best") and not (resume.isascii() and resume.isdecimal()):
            yield "resume", f"expected latest, best or the number of a checkpoint, got {resume!r}"
        elif config.run_dir is None:
            yield "resume", "expected run_dir to be set too, to the directory of the run, got null"
    if config.checkpoint.exact_reset_cycles is not None and not config.has_fixed_order:
        yield (
            "checkpoint.exact_reset_cycles",
            "an exact resume needs trajectories in actor order, which a free-running run does not"
            " have. Set learner.policy_lag",
        )
    if config.actor.threads_per_device == 0 and config.actor.remote == 0:
        yield "actor.threads_per_device", "expected at least 1 with actor.remote: 0, got 0"
    if config.run.repeatable == "strict" and not config.has_fixed_order:
        yield (
            "run.repeatable",
            "strict is incompatible with learner.policy_lag null, whose runs are not repeatable."
            " Set learner.policy_lag, or run.repeatable auto",
        )
    yield from _lag_problems(config)
    yield from _replay_problems(config.agent)
    yield from _device_problems(config)
    yield from _distributed_problems(config)


def _lag_problems(config: Config) -> Iterator[tuple[str, str]]:
    lag = config.policy_lag
    if lag is None and config.run.mode == "serial":
        lag = 0
    corrects = declared(config.agent, AgentSettings, "corrects_for_policy_lag")
    if lag != 0 and not corrects and not config.learner.allow_uncorrected_lag:
        yield (
            "learner.policy_lag",
            f"expected 0 with {config.agent.name}, which does not correct for acting with older"
            f" networks, got {'null' if lag is None else lag}. Set 0, or"
            " learner.allow_uncorrected_lag true",
        )


def _replay_problems(settings: Any) -> Iterator[tuple[str, str]]:
    if isinstance(settings, ReplayConfig):
        for name in ("batch_size", "min_replay_rows"):
            if (value := getattr(settings, name)) > settings.replay_capacity:
                yield (
                    f"agent.{name}",
                    f"expected at most agent.replay_capacity, which is {settings.replay_capacity},"
                    f" got {value}",
                )


def _device_problems(config: Config) -> Iterator[tuple[str, str]]:
    for key in ("devices.actor", "devices.learner"):
        devices = value_of(config, key)
        if devices is None or devices == "cpu":
            continue
        if not devices:
            yield key, "expected at least one device, got []. Set null to choose automatically"
        if len(set(devices)) < len(devices):
            yield key, f"expected each device once, got {list(devices)}"
    num_envs, num_learners = config.actor.num_envs, len(config.devices.learner or (0,))
    if num_envs % num_learners:
        lower = num_envs - num_envs % num_learners
        nearest = " or ".join(str(x) for x in (lower, lower + num_learners) if x)
        yield (
            "actor.num_envs",
            f"expected a multiple of the {num_learners} devices in devices.learner, "
            f"got {num_envs}. Set {nearest}",
        )


def _distributed_problems(config: Config) -> Iterator[tuple[str, str]]:
    distributed, mode = config.distributed, config.distributed.effective_mode
    for name in ("coordinator", "num_processes", "process_id"):
        key, value = f"distributed.{name}", getattr(distributed, name)
        if mode == "manual" and value is None:
            yield key, "expected a value with distributed.mode: manual, got null"
        if mode != "manual" and value is not None:
            yield (
                key,
                f"only used with distributed.mode: manual, got {value!r} with {mode}. Set null, or"
                " the mode manual",
            )
    if mode != "manual":
        return
    host, _, port = (distributed.coordinator or "host:1").rpartition(":")
    if not host or not (port.isascii() and port.isdecimal() and 0 < int(port[:6]) < 2**16):
        yield "distributed.coordinator", f"expected host:port, got {distributed.coordinator!r}"
    if (distributed.process_id or 0) >= (distributed.num_processes or 1):
        yield (
            "distributed.process_id",
            f"expected less than distributed.num_processes, which is {distributed.num_processes},"
            f" got {distributed.process_id}",
        )
