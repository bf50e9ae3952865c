"""The directory of a run: its config, its versions and its hardware."""

import collections
import contextlib
import dataclasses
import datetime
import fnmatch
import json
import os
import pathlib
import platform
import shlex
import shutil
import sys
from collections.abc import Callable
from typing import Any

import jax

from sebulba.config import Config, DistributedConfig
from sebulba.config.loading import flag_name, load_config, to_yaml
from sebulba.config.naming import default_run_dir
from sebulba.config.objects import source_files
from sebulba.config.plugins import package_version
from sebulba.config.run_spec import num_actors_of_host
from sebulba.config.schema import flat_config
from sebulba.config.yaml_dialect import inline
from sebulba.devices.repeatable import kernels_of_gpu
from sebulba.devices.roles import num_actor_devices
from sebulba.devices.xla_flags import VARIABLE
from sebulba.errors import ConfigError
from sebulba.process import program
from sebulba.storage.checkpoints.restore import Which, steps_in
from sebulba.storage.fingerprint import describe_machine
from sebulba.storage.lock import RunLock, take_lock
from sebulba.storage.metrics.files import write_json, write_text
from sebulba.storage.names import (
    CHANGES,
    CHECKPOINTS,
    CHECKSUMS,
    CONFIG,
    EARLIER,
    EVALUATIONS,
    GOALS,
    HOSTS,
    LOCK,
    METRICS,
    METRICS_TABLE,
    NON_FINITE,
    PROFILE,
    RUN,
    SOURCES,
    SUMMARY,
    VIDEOS,
)
from sebulba.storage.run_files import changes_of

_WRITTEN = (
    CONFIG,
    RUN,
    CHECKPOINTS,
    EVALUATIONS,
    NON_FINITE,
    SUMMARY,
    CHECKSUMS,
    "metrics.*",
    "events.out.tfevents.*",
    "wandb",
    VIDEOS,
    PROFILE,
    HOSTS,
    "*.tmp",
)
"""What a run writes into its directory."""
_OF_RUN = (
    CONFIG,
    RUN,
    METRICS,
    METRICS_TABLE,
    EVALUATIONS,
    CHECKSUMS,
    NON_FINITE,
    SUMMARY,
)
"""The files that describe a run with its checkpoints."""
_MAX_CYCLES = 5

_MAY_CHANGE = (
    *GOALS,
    "run.log_interval_env_steps",
    "run.profile",
    "run.checksums",
    "run.repeatable",
    "run.seeds",
    "checkpoint.interval_s",
    "checkpoint.keep",
    "actor.on_env_error",
    "actor.max_env_restarts",
    "actor.env_timeout_s",
    "actor.remote_cpus",
    "actor.remote_gpus",
    "actor.remote_timeout_s",
    "actor.remote_max_replay",
    "learner.update_timeout_s",
    "run.compile_timeout_s",
    "run.close_timeout_s",
    "evaluation.",
    "distributed.",
    "init_from",  # has no effect on a resumed run
    "init_mismatch",
    "resume",
    "run_dir",
)
# Of those, what holds for one start only: no resume repeats it.
_OF_ONE_START = ("distributed.", "init_from", "init_mismatch", "resume", "run_dir", "run.seeds")
# Others may be on some hosts only, such as a GPU's plugin, or a suite that the run does not use.
_OF_ALL_HOSTS = ("sebulba", "jax", "jaxlib", "flax", "optax", "numpy", "gymnasium", "envpool")
# Settings of JAX that decide which numbers are drawn, and in which type.
_OF_ALL_JAX = ("jax_enable_x64", "jax_default_prng_impl", "jax_threefry_partitionable")


def open_run_dir(
    config: Config, *, on_message: Callable[[str], None]
) -> tuple[pathlib.Path, RunLock]:
    """Lock the run's directory; create it with `config.yaml` and `run.json`, or reopen it.

    A resumed run keeps `config.yaml` and is added to `run.json`. What a run that learned nothing
    has left there is set aside.

    Args:
        config: of the run.
        on_message: takes lines of text, such as where earlier files are.

    Raises:
        ConfigError: the directory of a new run holds other files or a run that has learned, or that
            of a resumed run holds no run or one with another config; another process is using the
            directory; or it is not writable.
    """
    path = pathlib.Path(config.run_dir or default_run_dir(config))
    if config.resume is None:
        _check_own(path)
    elif not (path / CONFIG).is_file():
        raise ConfigError(f"resume: expected a run in {path}, which has no {CONFIG}")
    lock, is_new = None, not path.exists()
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = take_lock(path, on_message=on_message)
        if config.resume is None:
            _set_aside(path, on_message)
            _write_start(path, config)
        else:
            _reopen(path, config)
    except (ConfigError, OSError) as error:
        if lock is not None:
            lock.release()
        if is_new:
            with contextlib.suppress(OSError):
                path.rmdir()
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"run_dir: cannot create or write to {path}: {error}") from error
    return path, lock


def directory_of_host(path: pathlib.Path, number: int | None = None) -> pathlib.Path:
    """Return the directory of a host's own files; for the first host it is `path`.

    Args:
        path: the run directory.
        number: of the host; None: this one.
    """
    process = jax.process_index() if number is None else number
    return path if process == 0 else path / HOSTS / str(process)


def describe_software(config: Config) -> dict[str, str]:
    """Return config, versions and settings of JAX, by their names in messages.

    They must be equal on all hosts, and in the processes of remote actors.
    """
    settings = {
        f"the config's {key}": repr(value)
        for key, value in flat_config(config).items()
        if not key.startswith(("distributed.", "run_dir"))
    }
    versions = {
        f"the version of {package}": str(package_version(package)) for package in _OF_ALL_HOSTS
    }
    of_jax = {f"the setting {name}": repr(jax.config.values[name]) for name in _OF_ALL_JAX}
    python = {"the version of Python": platform.python_version()}
    return {**versions, **python, **of_jax, **settings}


def shown_path(path: pathlib.Path) -> str:
    """Return a path as text, relative to the working directory if it is inside of it."""
    with contextlib.suppress(ValueError):
        return str(path.relative_to(pathlib.Path.cwd()))
    return str(path)


def describe_devices() -> dict[str, str]:
    """Return number and kinds of this host's devices, which must be equal on all hosts."""
    kinds = collections.Counter(device.device_kind for device in jax.local_devices())
    return {"the devices": ", ".join(f"{count} × {kind}" for kind, count in kinds.items())}


def start_command(path: pathlib.Path) -> str:
    """Return the command that starts the run of a directory from its beginning."""
    config, directory = shlex.quote(str(path / CONFIG)), shlex.quote(str(path))
    return f"{program('train')} {config} --run-dir {directory}"


def resume_command(path: pathlib.Path, which: Which = "latest") -> str | None:
    """Return the command that resumes from a checkpoint; None without any checkpoint.

    It has the settings of the last start that are others than those of `config.yaml`.
    """
    if not steps_in(path / CHECKPOINTS):
        return None
    command = f"{start_command(path)} --resume {which}"
    for key, value in changes_of(_last_start(read_run_json(path))).items():
        command += f" {flag_name(key)} {shlex.quote(inline(value))}"
    return command


def describe_run() -> dict:
    """Return what results depend on: command, versions, machine and devices."""
    return {
        "argv": sys.argv,
        "started_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        **describe_machine(),
        "devices": [f"{device.platform}: {device.device_kind}" for device in jax.devices()],
        "xla_flags": os.environ.get(VARIABLE, ""),
        "matmul_precision": jax.config.values["jax_default_matmul_precision"],
        "kernels": kernels_of_gpu(),
    }


def record_in_run_json(path: pathlib.Path, key: str, value: Any) -> None:
    """Add a key to `run.json`, or replace its value."""
    stored = read_run_json(path)
    write_json(path / RUN, {**stored, key: value})


def record_in_start(path: pathlib.Path, values: dict[str, Any]) -> None:
    """Add what was not known before to the last start of a run in `run.json`.

    On a full disk it is left out: the run itself does not need it.
    """
    stored = read_run_json(path)
    _last_start(stored).update(values)
    with contextlib.suppress(OSError):
        write_json(path / RUN, stored)


def _last_start(stored: dict[str, Any]) -> dict[str, Any]:
    """Return what the last resume has added to the contents of `run.json`; of a new run, these."""
    resumed = stored.get("resumed")
    last = resumed[-1] if isinstance(resumed, list) and resumed else stored
    return last if isinstance(last, dict) else {}


def read_run_json(path: pathlib.Path) -> dict[str, Any]:
    """Return the contents of a run's `run.json`; empty if it has none that can be read."""
    try:
        stored = json.loads((path / RUN).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return stored if isinstance(stored, dict) else {}


def _check_own(path: pathlib.Path) -> None:
    """Check that a new run may use a directory: there is none, or it holds a run's files only."""
    try:
        names = [each.name for each in path.iterdir()] if path.exists() else []
    except OSError as error:
        raise ConfigError(f"run_dir: expected a directory, got {path}: {error}") from error
    # A lock may be that of a run that is just starting.
    own = (*_WRITTEN, EARLIER, f"{LOCK}*")
    is_foreign = any(not _matches(name, own) for name in names)
    if is_foreign and CONFIG not in names:
        raise ConfigError(
            f"run_dir: expected a new or empty directory, got {path}; choose another run_dir"
        )


def _set_aside(path: pathlib.Path, on_message: Callable[[str], None]) -> None:
    """Move what a run that learned nothing has left to a directory of its own.

    Raises:
        ConfigError: the run has a checkpoint.
    """
    if any(map(steps_in, (path / CHECKPOINTS, *path.glob(f"{HOSTS}/*/{CHECKPOINTS}")))):
        command = resume_command(path)
        raise ConfigError(
            f"run_dir: expected a new or empty directory, got {path}; choose another run_dir"
            + (f"; to resume its run: {command}" if command else "")
        )
    left = [each for each in path.iterdir() if _matches(each.name, _WRITTEN)]
    if not left:
        return
    aside = _make_earlier(path)
    for each in left:
        each.rename(aside / each.name)
    on_message(f"an earlier run here learned nothing; its files are now in {aside}")


def set_aside_later(path: pathlib.Path, step: int, on_message: Callable[[str], None]) -> None:
    """Move the checkpoints after one that a run resumes from to a directory of their own.

    With copies of the run's files, which end where the run resumes, that directory is the run as it
    was.

    Args:
        path: this host's part of the run directory.
        step: the learner cycle of the checkpoint.
        on_message: takes a line of text that says where the directory is.

    Raises:
        OSError: there is no space for the copies; the run is as it was.
    """
    later = [each for each in steps_in(path / CHECKPOINTS) if each > step]
    if not later:
        return
    aside = _make_earlier(path)
    for name in _OF_RUN:
        if (path / name).is_file():
            shutil.copy2(path / name, aside / name)
    (aside / CHECKPOINTS).mkdir()
    for each in later:
        (path / CHECKPOINTS / str(each)).rename(aside / CHECKPOINTS / str(each))
    cycles = ", ".join(map(str, later[:_MAX_CYCLES])) + (", …" if len(later) > _MAX_CYCLES else "")
    on_message(
        f"the checkpoints of later learner cycles ({cycles}) and copies of all rows are now in"
        f" {shown_path(aside)}"
    )


def _make_earlier(path: pathlib.Path) -> pathlib.Path:
    number = 1
    while (earlier := path / EARLIER / str(number)).exists():
        number += 1
    earlier.mkdir(parents=True)
    return earlier


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatch(name, pattern) for pattern in patterns)


def _write_start(path: pathlib.Path, config: Config) -> None:
    write_text(path / CONFIG, to_yaml(_without_process_id(config)))
    write_json(path / RUN, {**describe_run(), SOURCES: source_files(config)})


def _reopen(path: pathlib.Path, config: Config) -> None:
    first = load_config(str(path / CONFIG))
    may_change: tuple[str, ...] = _MAY_CHANGE
    # Each actor continues where it was, whoever acts: here, or in a process of its own.
    if _num_actors(first) == _num_actors(config):
        may_change = (*_MAY_CHANGE, "actor.threads_per_device", "actor.remote")
    earlier, now = flat_config(first), flat_config(config)
    changed = [
        f"{key} (there {earlier.get(key)!r}, now {now.get(key)!r})"
        for key in {**earlier, **now}
        if earlier.get(key) != now.get(key) and not key.startswith(may_change)
    ]
    if changed:
        own = f"{program('train')} --run-dir {shlex.quote(str(path))} --resume {config.resume}"
        raise ConfigError(
            f"resume: expected the config of {path / CONFIG}, got another {', '.join(changed)};"
            f" only {', '.join(key.rstrip('.') for key in _MAY_CHANGE)} may change, and which"
            f" actors are remote. To resume the run with its own config: {own}"
        )
    resumed = read_run_json(path).get("resumed")
    changes = {
        key: value
        for key, value in now.items()
        if value != earlier.get(key) and not key.startswith(_OF_ONE_START)
    }
    start = {**describe_run(), CHANGES: changes}
    resumed = [*(resumed if isinstance(resumed, list) else []), start]
    record_in_run_json(path, "resumed", resumed)


def _num_actors(config: Config) -> int:
    return num_actors_of_host(config.actor, num_actor_devices(config.devices))


def _without_process_id(config: Config) -> Config:
    """Return the config without the id of this process, which the hosts do not share."""
    if config.distributed.effective_mode == "auto":
        return config
    return dataclasses.replace(config, distributed=DistributedConfig())
