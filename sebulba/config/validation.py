"""Check the values of a config, as far as that needs no device."""

import functools
from collections.abc import Iterator
from typing import Any

from sebulba.agent import AgentSettings, declared
from sebulba.config import Config
from sebulba.errors import ConfigError

_MINIMUM = {
    "actor.threads_per_device": 1,
    "actor.num_envs": 1,
    "actor.trajectory_length": 1,
    "actor.max_env_restarts": 1,
    "actor.env_timeout_s": 1,
    "learner.trajectories_per_cycle": 1,
    "learner.policy_lag": 0,
    "learner.queue_slots_per_actor": 1,
    "learner.max_non_finite_updates": 1,
    "learner.update_timeout_s": 1,
    "run.total_env_steps": 1,
    "run.compile_timeout_s": 1,
    "run.return_window": 1,
    "run.log_interval_env_steps": 1,
    "checkpoint.interval_s": 0,
    "checkpoint.keep": 1,
    "checkpoint.exact_reset_cycles": 1,
    "evaluation.interval_env_steps": 1,
    "evaluation.episodes": 1,
    "evaluation.parallel_envs": 1,
    "evaluation.max_episode_steps": 1,
    "distributed.num_processes": 1,
    "distributed.process_id": 0,
    "distributed.join_timeout_s": 1,
    "distributed.heartbeat_timeout_s": 1,
    "seed": 0,
}
_MAX_SEED = 2**31 - 1  # EnvPool's seeds are int32.


def value_of(config: Config, key: str) -> Any:
    """Return the value of a dotted key."""
    return functools.reduce(getattr, key.split("."), config)


def validate(config: Config) -> None:
    """Check every value that can be checked without a device.

    Raises:
        ConfigError: the key of the first wrong value, what was expected and what came.
    """
    for key, message in problems(config):
        raise ConfigError(f"{key}: {message}")


def problems(config: Config) -> Iterator[tuple[str, str]]:
    """Yield the key and the error message of every wrong value."""
    for key, minimum in _MINIMUM.items():
        value = value_of(config, key)
        if value is not None and value < minimum:
            yield key, f"expected at least {minimum}, got {value}"
    if config.seed > _MAX_SEED:
        yield "seed", f"expected at most {_MAX_SEED}, got {config.seed}"
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
    if (
        config.checkpoint.exact_reset_cycles is not None
        and config.learner.policy_lag is None
        and config.run.mode != "serial"
    ):
        yield (
            "checkpoint.exact_reset_cycles",
            "an exact resume needs trajectories in actor order, which a free-running run does not"
            " have. Set learner.policy_lag",
        )
    yield from _lag_problems(config)
    yield from _device_problems(config)
    yield from _distributed_problems(config)


def _lag_problems(config: Config) -> Iterator[tuple[str, str]]:
    lag = config.learner.policy_lag
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


def _device_problems(config: Config) -> Iterator[tuple[str, str]]:
    for key in ("devices.actor", "devices.learner"):
        devices = value_of(config, key)
        if devices is None or devices == "cpu":
            continue
        if not devices:
            yield key, "expected at least one device, got []. Set null to choose automatically"
        if any(device < 0 for device in devices):
            yield key, f"expected positions from 0, got {list(devices)}"
        if len(set(devices)) < len(devices):
            yield key, f"expected each device once, got {list(devices)}"
    num_envs, num_learners = config.actor.num_envs, len(config.devices.learner or (0,))
    if num_envs > 0 and num_envs % num_learners:
        lower = num_envs - num_envs % num_learners
        nearest = " or ".join(str(x) for x in (lower, lower + num_learners) if x)
        yield (
            "actor.num_envs",
            f"expected a multiple of the {num_learners} devices in devices.learner, "
            f"got {num_envs}. Set {nearest}",
        )


def _distributed_problems(config: Config) -> Iterator[tuple[str, str]]:
    distributed = config.distributed
    names = ("coordinator", "num_processes", "process_id")
    if distributed.effective_mode != "manual":
        for name in names:
            if (value := getattr(distributed, name)) is not None:
                yield (
                    f"distributed.{name}",
                    f"only used with distributed.mode: manual, got {value!r} with"
                    f" {distributed.effective_mode}. Set null, or the mode manual",
                )
        return
    for name in names:
        if getattr(distributed, name) is None:
            yield (
                f"distributed.{name}",
                "expected a value with distributed.mode: manual, got null",
            )
    host, _, port = (distributed.coordinator or "host:1").rpartition(":")
    if not host or not (port.isascii() and port.isdecimal() and 0 < int(port[:6]) < 2**16):
        yield "distributed.coordinator", f"expected host:port, got {distributed.coordinator!r}"
    if (distributed.process_id or 0) >= (distributed.num_processes or 1):
        yield (
            "distributed.process_id",
            f"expected less than distributed.num_processes, which is {distributed.num_processes},"
            f" got {distributed.process_id}",
        )
