"""Agents and environment suites from outside: `module:Name`, or an installed package's entry point.

A package declares its entry points in its `pyproject.toml`:

    [project.entry-points."sebulba.agents"]
    my_agent = "my_package.agents:MyAgent"
"""

import functools
from collections.abc import Mapping
from typing import Any

from sebulba.errors import ConfigError, did_you_mean
from sebulba.references import Named, load

AGENTS_GROUP = "sebulba.agents"
SUITES_GROUP = "sebulba.envs"


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
        prefix = f"{key}: " if key else ""
        raise ConfigError(
            f"{prefix}unknown name {name}{did_you_mean(name, known)}. "
            "For code of your own, write module:Name"
        )
    return load(known[name], key=key)


def plugins(group: str) -> dict[str, str]:
    """Return `module:Name` of each entry point of a group by its name, without importing any.

    Reads the metadata of every installed package, which takes a few milliseconds.

    Raises:
        ConfigError: two packages use one name for different things.
    """
    # Here and below: `--help` of our own agents does not need it, and it takes 30 ms.
    import importlib.metadata

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


@functools.cache
def package_version(name: str) -> str | None:
    """Return the version of an installed package; None: it is not installed."""
    import importlib.metadata

    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def plugin_package(group: str, name: str) -> tuple[str, str] | None:
    """Return name and version of the package that has an entry point; None if there is none."""
    import importlib.metadata

    for entry in importlib.metadata.entry_points(group=group):
        if entry.name == name and entry.dist is not None:
            return entry.dist.name, entry.dist.version
    return None
