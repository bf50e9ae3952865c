"""The directory of a run: its config, its versions and hardware, and the names of its files."""

import dataclasses
import datetime
import importlib.metadata
import json
import pathlib
import platform
import shlex
import sys
from typing import Any

import jax

from sebulba.config import Config, DistributedConfig
from sebulba.config.loading import load_config, to_yaml
from sebulba.config.naming import default_run_dir
from sebulba.errors import ConfigError
from sebulba.storage.checkpoints.restore import steps_in
from sebulba.storage.metrics.files import write_json, write_text

CHECKPOINTS = "checkpoints"
CONFIG = "config.yaml"
NON_FINITE = "non_finite.json"
"""Which non-finite update stopped the run, and the checkpoint with the inputs of that update."""
EVALUATIONS = "evaluations.jsonl"
_RUN = "run.json"

_MAY_CHANGE = (
    "run.total_env_steps",
    "run.stop_at_return",
    "run.log_interval_env_steps",
    "run.record_schedule",
    "checkpoint.interval_s",
    "checkpoint.keep",
    "actor.on_env_error",
    "actor.max_env_restarts",
    "actor.env_timeout_s",
    "learner.update_timeout_s",
    "run.compile_timeout_s",
    "evaluation.",
    "distributed.",
    "resume",
    "run_dir",
)
_PACKAGES = ("sebulba", "jax", "jaxlib", "flax", "optax", "numpy", "gymnasium", "envpool")


def open_run_dir(config: Config) -> pathlib.Path:
    """Create the run's directory with `config.yaml` and `run.json`, or open it to resume the run.

    A resumed run keeps `config.yaml` and is added to `run.json`.

    Raises:
        ConfigError: the directory of a new run is not empty, or that of a resumed run holds no run
            or one with another config.
    """
    path = pathlib.Path(config.run_dir or default_run_dir(config))
    if config.resume is not None:
        return _reopen(path, config)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        command = resume_command(path)
        advice = f"; to resume its run: {command}" if command else ""
        raise ConfigError(
            f"run_dir: expected a new or empty directory, got {path}; choose another with --run-dir"
            f"{advice}"
        )
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"run_dir: cannot create {path}: {error}") from error
    write_text(path / CONFIG, to_yaml(_without_process_id(config)))
    write_json(path / _RUN, describe_run())
    return path


def directory_of_host(path: pathlib.Path) -> pathlib.Path:
    """Return the directory of this host's own files; for the first host it is `path`."""
    process = jax.process_index()
    return path if process == 0 else path / "hosts" / str(process)


def describe_host(config: Config) -> dict[str, str]:
    """Return the values that must be equal on all hosts, by their names in error messages."""
    settings = {
        f"the config's {key}": repr(value)
        for key, value in _flat(config).items()
        if not key.startswith(("distributed.", "run_dir"))
    }
    versions = {f"the version of {package}": str(_version(package)) for package in _PACKAGES}
    return {
        **settings,
        **versions,
        "the version of Python": platform.python_version(),
        "the devices": ", ".join(device.device_kind for device in jax.local_devices()),
    }


def resume_command(path: pathlib.Path) -> str | None:
    """Return the command that resumes from the last checkpoint; None without a checkpoint."""
    if not steps_in(path / CHECKPOINTS):
        return None
    config, directory = shlex.quote(str(path / CONFIG)), shlex.quote(str(path))
    return f"python -m sebulba.train {config} --run-dir {directory} --resume latest"


def describe_run() -> dict:
    """Return what results depend on: command, versions, machine and devices."""
    return {
        "argv": sys.argv,
        "started_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": {package: _version(package) for package in _PACKAGES},
        "devices": [f"{device.platform}: {device.device_kind}" for device in jax.devices()],
    }


def _reopen(path: pathlib.Path, config: Config) -> pathlib.Path:
    if not (path / CONFIG).is_file():
        raise ConfigError(f"resume: expected a run in {path}, which has no {CONFIG}")
    earlier, now = _flat(load_config(str(path / CONFIG))), _flat(config)
    changed = [
        f"{key} (there {earlier.get(key)!r}, now {now.get(key)!r})"
        for key in {**earlier, **now}
        if earlier.get(key) != now.get(key) and not key.startswith(_MAY_CHANGE)
    ]
    if changed:
        raise ConfigError(
            f"resume: expected the config of {path / CONFIG}, got another {', '.join(changed)};"
            f" only {', '.join(key.rstrip('.') for key in _MAY_CHANGE)} may change"
        )
    try:
        first = json.loads((path / _RUN).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        first = {}
    resumed = [*first.get("resumed", []), describe_run()]
    write_json(path / _RUN, {**first, "resumed": resumed})
    return path


def _without_process_id(config: Config) -> Config:
    """Return the config without the id of this process, which the hosts do not share."""
    if config.distributed.effective_mode == "auto":
        return config
    return dataclasses.replace(config, distributed=DistributedConfig())


def _flat(config: Config) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in vars(config).items():
        if dataclasses.is_dataclass(value):
            values |= {f"{name}.{key}": each for key, each in vars(value).items()}
        else:
            values[name] = value
    return values


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
