"""Finding things by the names that a config gives, with errors that help."""

import difflib
import importlib
import importlib.util
import types
from collections.abc import Iterable
from typing import Any

from sebulba.errors import ConfigError

EXTRAS: dict[str, str] = {
    "ale_py": "atari",
    "gymnax": "gymnax",
    "mujoco": "mujoco",
}
"""The extra of this package that installs a module, for the modules that not everybody needs."""

_NAMESPACES: dict[str, str] = {"ALE": "ale_py"}
"""The module that registers a Gymnasium namespace; Gymnasium itself does not import it."""


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


def import_module(name: str, *, key: str) -> types.ModuleType:
    """Imports a module that the config key `key` names.

    Raises:
        ConfigError: there is no such module.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # The module is there; something that it imports is not.
        raise ConfigError(f"{key}: there is no module {error.name!r}") from error


def missing_package(error: BaseException) -> str | None:
    """Returns which package to install, if an error comes of a missing one that an extra brings."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ModuleNotFoundError) and cause.name is not None:
            module = cause.name.partition(".")[0]
            if module in EXTRAS:
                return describe_missing(module)
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return None


def describe_namespace(name: str) -> str:
    """Returns `"; ..."`, how to come by a Gymnasium id of a known namespace, or nothing."""
    module = _NAMESPACES.get(name.partition("/")[0])
    if module is None or "/" not in name:
        return ""
    registers = f"{module}:{name} would import what registers it"
    if importlib.util.find_spec(module) is None:
        return f"; {registers}, after {install_command(module)}"
    return f"; {registers}"


def describe_missing(module: str) -> str:
    """Returns what to do about a missing module of `EXTRAS`."""
    return f"expected the package {module}, which is not installed: {install_command(module)}"


def install_command(module: str) -> str:
    """Returns the command that installs a module of `EXTRAS`."""
    return f"pip install 'sebulba[{EXTRAS[module]}]'"
