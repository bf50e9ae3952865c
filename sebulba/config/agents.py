"""From `agent.name` to the agent's settings dataclass and the agent itself.

A name is one of the table `agents.AGENTS`, one that an installed package brings (see
`sebulba.config.plugins`), or `module:Name` for an agent of one's own: a class built as
`Name(config, run_spec)` whose settings are the dataclass `Name.Config`.
"""

import dataclasses
import importlib
from collections.abc import Callable
from typing import Any

from sebulba.config.plugins import AGENTS_GROUP, plugins
from sebulba.errors import ConfigError, describe_nearest
from sebulba_agents import AGENTS

DEFAULT_AGENT = next(iter(AGENTS))
"""The agent of a config that names none."""


def agent_config_class(name: str) -> type:
    """Returns the settings dataclass; for an agent of the table, without importing jax.

    Raises:
        ConfigError: no such agent, or its settings are no dataclass with a field `name`.
    """
    config_class: Any = (
        _load(AGENTS[name].config) if name in AGENTS else getattr(_load(name), "Config", None)
    )
    is_dataclass = isinstance(config_class, type) and dataclasses.is_dataclass(config_class)
    if not is_dataclass or "name" not in {each.name for each in dataclasses.fields(config_class)}:
        raise ConfigError(
            f"{name}: expected its settings to be a dataclass `Config` with a field `name: str`, "
            f"got {config_class!r}"
        )
    return config_class


def agent_factory(name: str) -> Callable[..., Any]:
    """Returns what builds the agent from `(config, run_spec)`.

    Raises:
        ConfigError: no such agent.
    """
    return _load(AGENTS[name].factory if name in AGENTS else name)


def _load(name: str) -> Any:
    known = {} if ":" in name else plugins(AGENTS_GROUP)
    module_name, colon, attribute = known.get(name, name).partition(":")
    if not (module_name and colon and attribute):
        raise ConfigError(
            f"unknown agent {name}; {describe_nearest(name, [*AGENTS, *known])}, "
            "or module:Name for an agent of your own"
        )
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ConfigError(f"cannot import {module_name}: {error}") from error
    if not hasattr(module, attribute):
        names = [name for name in vars(module) if not name.startswith("_")]
        raise ConfigError(f"{module_name} has no {attribute}; {describe_nearest(attribute, names)}")
    return getattr(module, attribute)
