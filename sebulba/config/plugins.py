"""Agents and environment suites from outside: `module:Name`, or an installed package's entry point.

A package declares its entry points in its `pyproject.toml`:

    [project.entry-points."sebulba.agents"]
    my_agent = "my_package.agents:MyAgent"
"""

import importlib
import importlib.metadata
import types
from collections.abc import Mapping
from typing import Any

from sebulba.errors import ConfigError, did_you_mean

AGENTS_GROUP = "sebulba.agents"
SUITES_GROUP = "sebulba.envs"


class Named(str):
    """A name in a config that carries the object it names; see `sebulba.config.objects`."""

    value: Any

    def __new__(cls, name: str, value: Any) -> "Named":
        """Return the string `name` that carries `value`."""
        named = super().__new__(cls, name)
        named.value = value
        return named

    def __deepcopy__(self, memo: dict) -> "Named":
        # `dataclasses.asdict` copies the values of a config.
        return self


def load_named(name: str, own: Mapping[str, str], *, group: str, key: str = "") -> Any:
    """Import what a config names, and nothing else.

    Args:
        name: a name in `own`, an entry point of `group`, or `module:Name`.
        own: `module:Name` by name; these names cannot be taken over by an entry point.
        group: the group of entry points, which are only read for a name that is not in `own`.
        key: the config key that has the value `name`; begins the error if given.

    Raises:
        ConfigError: the name is unknown, or its module or attribute does not exist.
    """
    if isinstance(name, Named) or ":" in name:
        return load(name, key=key)
    # Twice: our own names are listed first, and their values win.
    known = own if name in own else {**own, **plugins(group), **own}
    if name not in known:
        raise ConfigError(
            f"{_prefix(key)}unknown name {name}{did_you_mean(name, known)}. "
            "For code of your own, write module:Name"
        )
    return load(known[name], key=key)


def load(reference: str, *, key: str = "") -> Any:
    """Import what `module:Name` refers to.

    Args:
        reference: `module:Name`.
        key: the config key that has this value; begins the error if given.

    Raises:
        ConfigError: the module does not exist, or has no such name.
        ImportError: the module exists, but its own imports fail.
    """
    if isinstance(reference, Named):
        return reference.value
    module_name, _, name = reference.partition(":")
    if not (module_name and name):
        raise ConfigError(f"{_prefix(key)}expected module:Name, got {reference!r}")
    module = import_module(module_name, key=key)
    if not hasattr(module, name):
        public = [each for each in vars(module) if not each.startswith("_")]
        raise ConfigError(f"{_prefix(key)}{module_name} has no {name}{did_you_mean(name, public)}")
    return getattr(module, name)


def import_module(name: str, *, key: str = "") -> types.ModuleType:
    """Import a module that a config names.

    Raises:
        ConfigError: the module does not exist.
        ImportError: the module exists, but its own imports fail.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # Only the module itself or a package that holds it may be missing here; a dependency of it
        # is another problem, and its traceback says where.
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise ConfigError(f"{_prefix(key)}there is no module {error.name!r}") from error


def plugins(group: str) -> dict[str, str]:
    """Return `module:Name` of each entry point of a group by its name, without importing any.

    Reads the metadata of every installed package, which takes a few milliseconds.

    Raises:
        ConfigError: two packages use one name for different things.
    """
    found: dict[str, str] = {}
    packages: dict[str, str] = {}
    for entry in importlib.metadata.entry_points(group=group):
        package = entry.dist.name if entry.dist is not None else "an unnamed package"
        reference = f"{entry.module}:{entry.attr}"
        if found.get(entry.name, reference) != reference:
            raise ConfigError(
                f"{entry.name}: name conflict in {group} between the packages "
                f"{packages[entry.name]} and {package}. "
                f"Write {found[entry.name]} or {reference} instead"
            )
        found[entry.name], packages[entry.name] = reference, package
    return found


def plugin_package(group: str, name: str) -> tuple[str, str] | None:
    """Return name and version of the package that has an entry point; None if there is none."""
    for entry in importlib.metadata.entry_points(group=group):
        if entry.name == name and entry.dist is not None:
            return entry.dist.name, entry.dist.version
    return None


def _prefix(key: str) -> str:
    return f"{key}: " if key else ""
