"""Makes the single environments of a batch, each with its own number.

Gymnasium's `make_vec` would make them all with the same arguments. Worker processes import this
module, so it must not import jax.
"""

import dataclasses
import functools
import inspect
import os
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator

from sebulba.envs.dm_env_to_gymnasium import DmEnv
from sebulba.envs.gymnasium_results import checked
from sebulba.envs.identity import NAMES, Purpose, asked_for
from sebulba.envs.old_gym import OldGym
from sebulba.envs.wrappers import Wrapper
from sebulba.errors import ConfigError, describe_error, did_you_mean

_OF_GYMNASIUM = ("max_episode_steps", "disable_env_checker")
# Environments of other interfaces, whose first argument is what makes the environment.
_CONVERTERS = (DmEnv, OldGym)
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EnvFactory:
    """Makes one environment, with its wrappers; can be pickled, for a worker process."""

    spec: EnvSpec
    options: dict[str, Any]  # of `gymnasium.make` and of the environment's constructor
    wrappers: tuple[Wrapper, ...]
    env_index: int
    purpose: Purpose
    # The process in which environments are made only to read their spaces; None: there is none.
    inspecting_process: int | None

    def __call__(self) -> gymnasium.Env:
        """Return the environment.

        Raises:
            ConfigError: a wrapper does not return a Gymnasium environment.
        """
        is_inspected = os.getpid() == self.inspecting_process
        identity = {
            "env_index": self.env_index,
            "purpose": "inspect" if is_inspected else self.purpose,
        }
        options = asked_for(constructor(self.spec.entry_point), identity) | self.options
        try:
            env = gymnasium.make(self.spec, **options)
        except TypeError as error:
            # Gymnasium raises it once more, without the line of the constructor.
            raise (error.__cause__ or error) from None
        check_made(env)
        for wrapper in self.wrappers:
            arguments = asked_for(wrapper.function, identity) | wrapper.arguments
            wrapped = dataclasses.replace(wrapper, arguments=arguments)(env)
            if not isinstance(wrapped, gymnasium.Env):
                raise wrapper.refusal("a Gymnasium environment", type(wrapped).__name__)
            env = wrapped
        return checked(env)


def check_arguments(spec: EnvSpec, options: Mapping[str, Any], *, name: str) -> None:
    """Compare the arguments of an environment with the parameters of its constructor.

    Args:
        spec: the environment's.
        options: `env.options`, without those of the vector environment.
        name: `env.id`, for messages.

    Raises:
        ConfigError: an argument is unknown or missing.
    """
    function = constructor(spec.entry_point)
    try:
        parameters = inspect.signature(function).parameters.values() if function else ()
    except (TypeError, ValueError):  # Written in C.
        return
    kinds = {each.kind for each in parameters}
    names = [each.name for each in parameters if each.kind not in _VARIADIC]
    if inspect.Parameter.VAR_KEYWORD not in kinds:
        for option in {**spec.kwargs, **options}:
            if option == "render_mode" and option not in names:
                raise ConfigError(
                    f"env.options.render_mode: {name} cannot be rendered, as its constructor has no"
                    " parameter render_mode. Give it one, and"
                    " `metadata = {'render_modes': ['rgb_array']}`"
                )
            if option not in (*names, *_OF_GYMNASIUM):
                known = [each for each in names if each not in NAMES]
                key = f"env.options.{option}"
                if option not in options:
                    key = f"env.id: {name} is registered with kwargs {spec.kwargs}"
                raise ConfigError(
                    f"{key}: its constructor has no parameter {option}"
                    f"{did_you_mean(option, [*known, 'max_episode_steps'])}"
                )
    for each in parameters:
        is_needed = each.default is inspect.Parameter.empty and each.kind not in _VARIADIC
        if is_needed and each.name not in {*options, *spec.kwargs, *NAMES}:
            raise ConfigError(
                f"env.options: expected a value of {each.name}, which the constructor of {name}"
                f" needs, got {dict(options)}. Set env.options.{each.name}"
            )


def check_made(env: gymnasium.Env) -> None:
    """Check that an environment has the methods of every environment.

    Raises:
        ConfigError: its class does not define one.
    """
    own = type(env.unwrapped)
    for method in ("reset", "step"):
        if getattr(own, method) is getattr(gymnasium.Env, method):
            raise ConfigError(
                f"env.id: expected {own.__name__} to have a method `{method}`, got none. Write one"
            )


def constructor(entry_point: Any) -> Callable[..., Any] | None:
    """Return the class or function that an entry point stands for; None: there is none.

    Raises:
        ConfigError: it cannot be imported.
    """
    if isinstance(entry_point, str):
        try:
            return load_env_creator(entry_point)
        except (ImportError, AttributeError) as error:
            raise ConfigError(
                f"env.id: the registered entry point {entry_point} cannot be imported:"
                f" {describe_error(error)}"
            ) from error
    is_converted = isinstance(entry_point, functools.partial) and entry_point.func in _CONVERTERS
    return entry_point.args[0] if is_converted else entry_point
