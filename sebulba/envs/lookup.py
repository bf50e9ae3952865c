"""Finding things by the names that a config gives, with errors that help."""

import difflib
import importlib
import types
from collections.abc import Iterable
from typing import Any

from sebulba.errors import ConfigError


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
