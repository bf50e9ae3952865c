"""What a config may not say, as far as no device is needed to see it."""

from collections.abc import Iterator

from sebulba.config import Config
from sebulba.errors import ConfigError

_LEAST = {
    "actor.threads_per_device": 1,
    "actor.num_envs": 1,
    "actor.trajectory_length": 1,
    "actor.max_env_restarts": 1,
    "actor.env_timeout_s": 1,
    "learner.trajectories_per_cycle": 1,
    "learner.max_policy_lag": 0,
    "learner.queue_slots_per_actor": 1,
    "learner.max_non_finite_updates": 1,
    "learner.update_timeout_s": 1,
    "run.total_env_steps": 1,
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
    "distributed.heartbeat_timeout_s": 1,
    "seed": 0,
}
_GREATEST_SEED = 2**31 - 1  # EnvPool's seeds are int32.


def validate(config: Config) -> None:
    """Checks every value that needs no device to be checked.

    Raises:
        ConfigError: the first wrong value, its key, what was expected and got.
    """
    for key, message in problems(config):
        raise ConfigError(f"{key}: {message}")


def problems(config: Config) -> Iterator[tuple[str, str]]:
    """Yields the key and the message of every wrong value."""
    for key, least in _LEAST.items():
        value = _value(config, key)
        if value is not None and value < least:
            yield key, f"expected at least {least}, got {value}"
    if config.seed > _GREATEST_SEED:
        yield "seed", f"expected at most {_GREATEST_SEED}, got {config.seed}"
    for key in ("env.suite", "env.id", "run_dir", "run.replay_schedule"):
        if _value(config, key) == "":
            yield key, "expected a name, got an empty string"
    if config.actor.rollout == "episodes" and config.actor.trajectory_length < 2:
        yield (
            "actor.trajectory_length",
            "expected at least 2 with actor.rollout episodes: the longest episode's env steps, and"
            f" 1 for the reset; got {config.actor.trajectory_length}",
        )
    resume = config.resume
    if resume is not None:
        if resume not in ("latest", "best") and not (resume.isascii() and resume.isdecimal()):
            yield "resume", f"expected latest, best or the number of a checkpoint, got {resume!r}"
        elif config.run_dir is None:
            yield "resume", "expected run_dir, the directory to go on in (--run-dir), got none"
    if config.run.replay_schedule is not None:
        if config.run.mode == "serial":
            yield (
                "run.replay_schedule",
                "expected run.mode threads, got serial, which has one order",
            )
        if resume is not None:
            yield (
                "run.replay_schedule",
                "expected a run from its start, got --resume: networks that were older than the"
                " checkpoint are gone",
            )
    if (
        config.checkpoint.exact_reset_cycles is not None
        and config.learner.max_policy_lag is None
        and config.run.mode == "threads"
    ):
        yield (
            "checkpoint.exact_reset_cycles",
            "expected null, or a bound on the policy lag (learner.max_policy_lag): without one"
            " trajectories are learned from as they arrive, and no checkpoint falls between two"
            " cycles of all actors",
        )
    yield from _device_problems(config)
    yield from _distributed_problems(config)


def _device_problems(config: Config) -> Iterator[tuple[str, str]]:
    for key in ("devices.actor", "devices.learner"):
        devices = _value(config, key)
        if devices is None:
            continue
        if not devices:
            yield key, "expected at least one device, got []; null chooses by itself"
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
            f"got {num_envs}; the nearest are {nearest}",
        )


def _distributed_problems(config: Config) -> Iterator[tuple[str, str]]:
    distributed = config.distributed
    told = ("coordinator", "num_processes", "process_id")
    if distributed.effective_mode != "manual":
        for name in told:
            if (value := getattr(distributed, name)) is not None:
                yield (
                    f"distributed.{name}",
                    f"expected null unless distributed.mode is manual, got {value!r}",
                )
        return
    for name in told:
        if getattr(distributed, name) is None:
            yield (
                f"distributed.{name}",
                "expected a value, since distributed.mode is manual, got none",
            )
    host, _, port = (distributed.coordinator or "host:1").rpartition(":")
    if not host or not port.isdecimal():
        yield "distributed.coordinator", f"expected host:port, got {distributed.coordinator!r}"
    if (distributed.process_id or 0) >= (distributed.num_processes or 1):
        yield (
            "distributed.process_id",
            f"expected less than the {distributed.num_processes} of distributed.num_processes,"
            f" got {distributed.process_id}",
        )


def _value(config: Config, key: str):
    value = config
    for name in key.split("."):
        value = getattr(value, name)
    return value
