"""The agent's defaults for the task of a run, which only its environment can tell."""

import dataclasses
from typing import Any, Literal

import gymnasium

from sebulba.agent import AgentSettings, declared
from sebulba.config import Config
from sebulba.config.coercion import coerce
from sebulba.config.schema import key_types
from sebulba.config.unknown_keys import suggestion
from sebulba.config.validation import validate, value_of
from sebulba.config.yaml_dialect import inline
from sebulba.envs import make_environment, without_workers
from sebulba.envs.closing import close_environments
from sebulba.errors import ConfigError, describe_error
from sebulba.task import Task
from sebulba.types import EnvironmentSpec


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskDefaults:
    """A config whose defaults suit its task."""

    config: Config
    message: str | None
    """A line of text about the defaults that were replaced; None: none was."""


def with_task_defaults(config: Config) -> TaskDefaults:
    """Replace the defaults of keys that nobody gave by `AgentSettings.defaults_for` the task.

    Makes one environment, to see its spaces, and closes it; makes none if every key was given or
    the agent has the same defaults for every task.

    Raises:
        ConfigError: the agent's defaults have an unknown key or a wrong value, or do not suit the
            values that were given.
    """
    types = key_types(type(config.agent))
    # Settings of another agent may have replaced those that the config was loaded with.
    open_defaults = {
        key: value
        for key, value in config.open_defaults.items()
        if key in types and value_of(config, key) == value and not key.startswith("env.")
    }
    defaults_for = declared(type(config.agent), AgentSettings, "defaults_for")
    if not open_defaults or defaults_for == AgentSettings.defaults_for:
        return TaskDefaults(config=config, message=None)
    try:
        task = task_of(config)
    except ConfigError:
        # The run makes its environments next, and reports the error in its own way.
        return TaskDefaults(config=config, message=None)
    except Exception as error:
        message = (
            f"warning: an environment raised {describe_error(error)}; so no defaults were chosen"
        )
        return TaskDefaults(config=config, message=message)
    chosen = {}
    for key, value in defaults_for(task).items():
        where = f"{type(config.agent).__qualname__}.defaults_for: {key}"
        if key not in types or key.startswith("env."):
            raise ConfigError(f"{where}: unknown key{suggestion(key, types)}")
        try:
            value = coerce(value, types[key])
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None
        if key in open_defaults and value != open_defaults[key]:
            chosen[key] = value
    if not chosen:
        return TaskDefaults(config=config, message=None)
    config = with_values(config, chosen)
    validate(config)
    settings = ", ".join(f"{key} {inline(value)}" for key, value in chosen.items())
    message = f"defaults of {config.agent.name} for {task.describe()}: {settings}"
    return TaskDefaults(
        config=config, message=f"{message}. A key in the config or a flag replaces its default"
    )


def task_of(config: Config) -> Task:
    """Return the task of a config; makes one environment, and closes it."""
    env = without_workers(config.env)
    environment = make_environment(env, num_envs=1, seed=config.seed)
    spec: EnvironmentSpec = environment.spec
    # Code of the user may raise, hang or exit here. The run closes its own environments, and warns.
    close_environments({"the task": environment}, config.run.close_timeout_s)
    is_box = isinstance(spec.action_space, gymnasium.spaces.Box)
    actions: Literal["continuous", "discrete"] = "continuous" if is_box else "discrete"
    return Task(
        observation=spec.observation_leaves,
        actions=actions,
        total_env_steps=config.run.total_env_steps,
    )


def with_values(config: Config, values: dict[str, Any]) -> Config:
    """Return the config with other values of dotted keys."""
    by_section: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        section, _, name = key.rpartition(".")
        by_section.setdefault(section, {})[name] = value
    of_top = by_section.pop("", {})
    sections = {
        section: dataclasses.replace(getattr(config, section), **changes)
        for section, changes in by_section.items()
    }
    return dataclasses.replace(config, **sections, **of_top)
