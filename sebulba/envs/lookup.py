"""Look-up of modules and options that a config names, with errors that suggest a fix."""

import difflib
import importlib
import importlib.util
import types
from collections.abc import Iterable, Mapping
from typing import Any

from sebulba.errors import ConfigError

EXTRAS: dict[str, str] = {
    "ale_py": "atari",
    "gymnax": "gymnax",
    "mujoco": "mujoco",
}
"""The extra of this package that installs each optional module."""

_NAMESPACES: dict[str, str] = {"ALE": "ale_py"}
"""The module that registers each Gymnasium namespace; Gymnasium does not import it by itself."""


def did_you_mean(name: str, valid: Iterable[str]) -> str:
    """Returns `"; did you mean a, b?"` for the nearest valid names, or nothing if none is near."""
    nearest = difflib.get_close_matches(name, list(valid), n=3)
    return f"; did you mean {', '.join(nearest)}?" if nearest else ""


def load(path: str, *, key: str) -> Any:
    """Imports what `module:Name` names.

    Args:
        path: `module:Name`.
        key: the config key that `path` was the value of.

    Raises:
        ConfigError: there is no such module, or no such name in it.
    """
    module_name, _, name = path.partition(":")
    module = import_module(module_name, key=key)
    if not hasattr(module, name):
        raise ConfigError(
            f"{key}: module {module_name!r} has no {name!r}{did_you_mean(name, vars(module))}"
        )
    return getattr(module, name)


def refuse_options(options: Iterable[str], advice: Mapping[str, str]) -> None:
    """Raise a ConfigError for an option that has an entry in `advice`: what to do instead."""
    for name in options:
        if name in advice:
            raise ConfigError(f"env.options.{name}: not supported here; {advice[name]}")


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message; the name of its type if there is no message."""
    return (str(error) or type(error).__name__).splitlines()[0]


def import_module(name: str, *, key: str) -> types.ModuleType:
    """Import the module that the config key `key` names.

    Raises:
        ConfigError: the module does not exist.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # The module exists, but one of its own imports does not.
        raise ConfigError(f"{key}: there is no module {error.name!r}") from error


def missing_package(error: BaseException) -> str | None:
    """Return what to install if a missing module of `EXTRAS` caused the error, else None."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ModuleNotFoundError) and cause.name is not None:
            module = cause.name.partition(".")[0]
            if module in EXTRAS:
                return f"the package {module} is not installed; run {_install_command(module)}"
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return None


def describe_namespace(name: str) -> str:
    """Return `"; ..."` on how to register a Gymnasium id of a known namespace, else `""`."""
    module = _NAMESPACES.get(name.partition("/")[0])
    if module is None or "/" not in name:
        return ""
    advice = f"use {module}:{name}, which imports the module that registers it"
    if importlib.util.find_spec(module) is None:
        return f"; {advice}, after {_install_command(module)}"
    return f"; {advice}"


def _install_command(module: str) -> str:
    return f"pip install 'sebulba[{EXTRAS[module]}]'"
