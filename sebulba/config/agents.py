"""From `agent.name` to the agent's settings dataclass and the agent itself.

A name is a key of `sebulba_agents.AGENTS`, an entry point of an installed package (see
`sebulba.config.plugins`), or `module:Name`. Outside the table, `Name(config, run_spec)` builds the
agent, and `Name.Config` is the dataclass of its settings.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from sebulba.config.extras import missing_package
from sebulba.config.objects import settings_class
from sebulba.config.plugins import AGENTS_GROUP, load_named
from sebulba.errors import ConfigError
from sebulba.references import Named, load
from sebulba_agents import AGENTS

DEFAULT_AGENT = next(iter(AGENTS))
"""The agent of a config without `agent.name`."""


def agent_config_class(name: str) -> type:
    """Return the settings dataclass of an agent; for one of the table, without importing jax.

    Raises:
        ConfigError: there is no such agent, or its settings are no dataclass with a field `name`.
    """
    if isinstance(name, Named):
        return settings_class(name.value)
    if name in AGENTS:
        return load(AGENTS[name].config)
    config_class: Any = getattr(agent_factory(name), "Config", None)
    is_dataclass = isinstance(config_class, type) and dataclasses.is_dataclass(config_class)
    if not is_dataclass or "name" not in {each.name for each in dataclasses.fields(config_class)}:
        raise ConfigError(
            f"{name}: expected its settings to be a dataclass `Config` with a field `name: str`, "
            f"got {config_class!r}"
        )
    return config_class


def agent_factory(name: str) -> Callable[..., Any]:
    """Return the function or class that builds the agent from `(config, run_spec)`.

    Raises:
        ConfigError: there is no such agent, or its module cannot be imported.
    """
    factories = {each: entry.factory for each, entry in AGENTS.items()}
    try:
        return load_named(name, factories, group=AGENTS_GROUP)
    except ImportError as error:
        reason = missing_package(error) or error
        raise ConfigError(f"agent.name: cannot import {name}: {reason}") from error


def make_agent(settings: Any, run_spec: Any) -> Any:
    """Return the agent that `settings.name` names; it computes in 32 bits.

    In a game whose opponent is the learner itself, it moves for the opponent, too. With groups of
    players, it is one agent for each group.

    Args:
        settings: the agent's.
        run_spec: the run's, a `RunSpec`.

    Raises:
        ConfigError: there is no such agent, or the settings do not suit it.
    """
    # Imported here: a config is read without jax.
    from sebulba.precision import in_32_bits
    from sebulba.toolkit.past_play import with_opponents
    from sebulba.toolkit.player_groups import with_groups

    def make(spec: Any) -> Any:
        return in_32_bits(agent_factory(settings.name)(settings, spec))

    if run_spec.groups:
        return in_32_bits(with_groups(make, run_spec))
    agent, opponents = make(run_spec), run_spec.environment.opponents
    return agent if opponents is None else in_32_bits(with_opponents(agent, opponents))
