"""Look-up of modules and options that a config names, with errors that suggest a fix."""

import importlib.util
from collections.abc import Iterable, Mapping
from typing import Any

from sebulba.config import EnvConfig
from sebulba.config.extras import install_command
from sebulba.errors import ConfigError, did_you_mean

_NAMESPACES: dict[str, str] = {"ALE": "ale_py"}
"""The module that registers each Gymnasium namespace; Gymnasium does not import it by itself."""


def refuse_options(options: Iterable[str], advice: Mapping[str, str]) -> None:
    """Raise a ConfigError for an option that has an entry in `advice`: what to do instead."""
    for name in options:
        if name in advice:
            raise ConfigError(f"env.options.{name}: not supported here; {advice[name]}")


def refuse_unknown_options(config: EnvConfig, valid: Iterable[str]) -> None:
    """Raise a ConfigError for an option of `config` that is not in `valid`."""
    for option in config.options:
        if option not in valid:
            raise ConfigError(
                f"env.options.{option}: {config.id!r} has no such option"
                f"{did_you_mean(option, valid)}"
            )


def check_step_limit(limit: Any) -> None:
    """Raise a ConfigError unless the option `max_episode_steps` is None or a positive int."""
    if limit is not None and (not isinstance(limit, int) or limit < 1):
        raise ConfigError(
            f"env.options.max_episode_steps: expected an int of at least 1, got {limit!r}"
        )


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message; the name of its type if there is no message."""
    return (str(error) or type(error).__name__).splitlines()[0]


def describe_namespace(name: str) -> str:
    """Return `"; ..."` on how to register a Gymnasium id of a known namespace, else `""`."""
    module = _NAMESPACES.get(name.partition("/")[0])
    if module is None or "/" not in name:
        return ""
    advice = f"use {module}:{name}, which imports the module that registers it"
    if importlib.util.find_spec(module) is None:
        return f"; {advice}, after {install_command(module)}"
    return f"; {advice}"
