"""Agents and environments of a config as Python objects instead of names. Imports no jax.

A config holds names, so that it can be written to a file. The name of an object is a `Named`, a
string that carries the object: every reader of the config, in every thread, finds the object there
without a global table.
"""

import contextlib
import dataclasses
import importlib.util
import inspect
import pathlib
import sys
import warnings
from typing import Any

from sebulba.config.schema import Config, changed_fields, key_fields
from sebulba.errors import ConfigError
from sebulba.references import Named, strings_in


@dataclasses.dataclass(frozen=True, kw_only=True)
class NameOnly:
    """The settings of an agent that has none in the config."""

    name: str
    """The agent."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"there is no setting {name!r}: the agent has no attribute `Config`, a dataclass of its"
            " settings"
        )


def settings_class(agent: Any) -> type:
    """Return the dataclass of an agent's settings: its `Config`, or `NameOnly`."""
    return getattr(agent, "Config", NameOnly)


def named_agent(agent: Any) -> Named:
    """Return the `agent.name` of an agent: the value is called with `(config, run_spec)`.

    Args:
        agent: a class or function `(config, run_spec) -> Agent`, or an `Agent`.
    """
    if hasattr(agent, "init_networks") and not isinstance(agent, type):
        return Named(_reference(agent), _Constant(agent))
    if not callable(agent):
        raise ConfigError(f"agent: expected an agent, or a class or function, got {agent!r}")
    return Named(_reference(agent), agent)


def with_agent(config: Config, agent: Any) -> Config:
    """Return the config with an agent.

    Its settings are `config.agent` if that is an instance of the agent's dataclass `Config`, else
    the defaults of `Config`. An agent without `Config` has no settings. A warning names settings of
    `config.agent` that are not used.

    Raises:
        ConfigError: the value is no agent, or its settings have no defaults.
    """
    name = named_agent(agent)
    of_agent: Any = settings_class(name.value)
    if isinstance(config.agent, of_agent):
        return dataclasses.replace(config, agent=dataclasses.replace(config.agent, name=name))
    if unused := [key for key in changed_fields(config.agent) if key != "name"]:
        own = f"the defaults of {of_agent.__qualname__}"
        how = f"dataclasses.replace(config, agent={of_agent.__qualname__}(...))"
        if of_agent is NameOnly:
            own, how = "no settings", f"{type(config.agent).__name__} as its attribute `Config`"
        warnings.warn(
            f"agent: {name} gets {own}, and not config.agent, which has settings of"
            f" {config.agent.name}: {', '.join(unused)}. To give it settings, use {how}",
            stacklevel=3,
        )
    try:
        settings = of_agent(name=name)
    except TypeError as error:
        raise ConfigError(f"agent: expected `config.agent` of {of_agent}: {error}") from error
    opened = {
        key: value for key, value in config.open_defaults.items() if not key.startswith("agent.")
    }
    if opened:  # The config is of a file, so the new settings are defaults that nobody chose.
        opened |= {
            f"agent.{each.name}": getattr(settings, each.name) for each in key_fields(settings)
        }
        del opened["agent.name"]
    return dataclasses.replace(config, agent=settings, open_defaults=opened)


def with_environment(config: Config, environment: Any) -> Config:
    """Return the config with an environment; `env.options` are kept.

    Args:
        config: the config that gets the environment.
        environment: a subclass of `gymnasium.Env`, or a function that takes `env.options` as
            keywords and returns one; a JAX task or its class, as
            `sebulba.envs.jax_environment.JaxTask` explains; or an adapter's function
            `(env_config, *, num_envs, seed)`.

    Raises:
        ConfigError: the environment is none of these.
    """
    name = _reference(environment)
    if all(hasattr(environment, each) for each in ("observation", "action_space", "reset", "step")):
        is_class = isinstance(environment, type)
        task = environment if is_class else _Constant(environment)
        changes: dict[str, Any] = {"suite": "jax", "id": Named(name, task)}
    elif not callable(environment):
        raise ConfigError(
            "environment: expected a class or function that makes environments, since each actor"
            f" makes actor.num_envs of them, got {environment!r}; write lambda: MyEnvironment(...)"
        )
    elif {"num_envs", "seed"} <= _parameters(environment):
        changes = {"suite": Named(name, environment), "id": name}
    else:
        changes = {"suite": "gymnasium", "id": Named(name, environment)}
    return dataclasses.replace(config, env=dataclasses.replace(config.env, **changes))


def source_files(config: Config) -> dict[str, str]:
    """Return the file of each module that a config names as `module:Name`, by that name.

    Any setting may name one: an agent, a network, a wrapper, a metric, or an environment's options.
    """
    files = {}
    for name in strings_in(config):
        module, _, attribute = name.partition(":")
        is_address = attribute.startswith("/")  # as in http://… and C:/…
        if not attribute or is_address or not module.replace(".", "").isidentifier():
            continue
        # Parents are imported, which may fail; others may be no modules at all.
        with contextlib.suppress(Exception):
            loaded = sys.modules.get(module)
            spec = importlib.util.find_spec(module) if loaded is None else None
            file = getattr(loaded, "__file__", None) or getattr(spec, "origin", None)
            if file is not None:
                files[str(name)] = str(pathlib.Path(file).absolute())
    return files


def check_importable(config: Config) -> None:
    """Check that other processes get the agent and the environment of a config by their names.

    Raises:
        ConfigError: one was given as an object, whose name gives another one, or none.
    """
    if objects := unimportable_objects(config):
        key, name = objects[0]
        raise ConfigError(
            f"{key}: expected no object with actor.remote, since other processes import what the"
            f" config names, got {name}. Put it into a module, and name it in the config"
        )


def unimportable_objects(config: Config) -> list[tuple[str, str]]:
    """Return "agent" or "environment", and its name, of each that other processes cannot import.

    It was given as an object, whose name gives another one, or none.
    """
    objects: list[tuple[str, str]] = []
    for key, name in (
        ("agent", config.agent.name),
        ("environment", config.env.suite),
        ("environment", config.env.id),
    ):
        if not isinstance(name, Named):
            continue
        module, _, path = name.partition(":")
        found: Any = sys.modules.get(module)
        for part in path.split("."):
            found = getattr(found, part, None)
        if module == "__main__" or found is not name.value:
            objects.append((key, name))
    return objects


class _Constant:
    """A factory that returns the same object each time."""

    def __init__(self, value: Any):
        self._value = value
        if hasattr(value, "Config"):
            self.Config = value.Config

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._value


def _reference(value: Any) -> str:
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}:{named.__qualname__}"


def _parameters(function: Any) -> set[str]:
    try:
        return set(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # Written in C.
        return set()
