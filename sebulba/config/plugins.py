"""Agents and environment suites that other installed packages bring, by their entry points.

A package names them in its `pyproject.toml`, as `module:Name`:

    [project.entry-points."sebulba.agents"]
    my_agent = "my_package.agents:MyAgent"
"""

import importlib.metadata

from sebulba.errors import ConfigError

AGENTS_GROUP = "sebulba.agents"
SUITES_GROUP = "sebulba.envs"


def plugins(group: str) -> dict[str, str]:
    """Returns `module:Name` by the name of each entry point of a group; imports none of them.

    Reads the metadata of every installed package: a few milliseconds, for unknown names only.

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
                f"{entry.name}: expected one installed package with this name in {group}, got "
                f"{packages[entry.name]} and {package}; say {found[entry.name]} or {reference}"
            )
        found[entry.name], packages[entry.name] = reference, package
    return found


def plugin_package(group: str, name: str) -> tuple[str, str] | None:
    """Returns the name and version of the package that brings an entry point; None if unknown."""
    for entry in importlib.metadata.entry_points(group=group):
        if entry.name == name and entry.dist is not None:
            return entry.dist.name, entry.dist.version
    return None
