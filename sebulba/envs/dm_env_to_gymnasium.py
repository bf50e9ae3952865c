"""Environments of dm_env as Gymnasium environments. Worker processes import this: no jax."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, Tuple

from sebulba.envs.gymnasium_results import ResultError, describe_value, is_number
from sebulba.errors import ConfigError

_METHODS = ("reset", "step", "observation_spec", "action_spec")


class DmEnv(gymnasium.Env):
    """An environment with the interface of `dm_env.Environment`.

    The last step of an episode is terminated if its discount is 0, else truncated. A function that
    makes environments and has a parameter `seed` is given the seed; one without it makes
    environments that no seed repeats.
    """

    def __init__(self, make: Callable[..., Any], **options: Any):
        """Make an environment.

        Args:
            make: a class or function that makes one.
            options: arguments of `make`.

        Raises:
            ConfigError: `make` returns something else, or a spec is not of arrays.
        """
        self._make, self._options = make, options
        takes_seed = "seed" in inspect.signature(make).parameters
        self._takes_seed = takes_seed and "seed" not in options
        self._env = env = make(**options)
        missing = [method for method in _METHODS if not hasattr(env, method)]
        if missing:
            name = getattr(make, "__name__", repr(make))
            raise ConfigError(
                f"env.id: expected {name} to make a dm_env.Environment, got {type(env).__name__},"
                f" which has no {', '.join(missing)}"
            )
        self.own_class = type(env)
        self.observation_space = _space_of(env.observation_spec(), "observation")
        self.action_space = _space_of(env.action_spec(), "action")

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode; a seed creates the environment again."""
        super().reset(seed=seed)
        if seed is not None and self._takes_seed:
            self.close()
            self._env = self._make(seed=seed, **self._options)
        time_step = self._env.reset()
        if not time_step.first():
            raise self._error("reset", "step_type", "FIRST", time_step.step_type)
        return _copied(time_step.observation), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take one step.

        Raises:
            ResultError: the step begins an episode, or has another discount than 1 and ends none.
        """
        time_step = self._env.step(action)
        discount, is_last = time_step.discount, bool(time_step.last())
        if time_step.first():
            raise self._error("step", "step_type", "MID or LAST", time_step.step_type)
        if not is_number(discount):
            raise self._error("step", "discount", "a number", discount)
        if not is_last and discount != 1.0:
            # Agents discount by `agent.discount` alone, so their values would be wrong.
            raise self._error("step", "discount", "1 before the last step", discount)
        terminated = is_last and bool(discount == 0.0)
        truncated = is_last and not terminated
        return _copied(time_step.observation), time_step.reward, terminated, truncated, {}

    def close(self) -> None:
        """Close the environment, if it can be closed."""
        if hasattr(self._env, "close"):
            self._env.close()

    def _error(self, method: str, what: str, expected: str, got: Any) -> ResultError:
        name = self.own_class.__name__
        return ResultError(
            f"{what}: expected {expected}, got {describe_value(got)}; correct {method} of {name}"
        )


def _copied(observation: Any) -> Any:
    """Return a copy: an environment may write each observation into the same memory."""
    if isinstance(observation, Mapping):
        return {str(name): _copied(each) for name, each in observation.items()}
    if isinstance(observation, list | tuple):
        return tuple(map(_copied, observation))
    return np.array(observation)


def _space_of(spec: Any, path: str) -> gymnasium.Space:
    """Return the space of a spec of `dm_env.specs`, or of a mapping or sequence of specs.

    Raises:
        ConfigError: a spec is not of numbers or bools.
    """
    if isinstance(spec, Mapping):
        return Dict({str(name): _space_of(each, f"{path}.{name}") for name, each in spec.items()})
    if isinstance(spec, list | tuple):
        return Tuple([_space_of(each, f"{path}[{i}]") for i, each in enumerate(spec)])
    kind = np.dtype(getattr(spec, "dtype", object)).kind
    if kind not in "biuf":
        raise ConfigError(
            f"env.id: expected arrays of numbers in {path}, got {spec!r}. Name a function of your"
            " own that makes the environment and leaves it out"
        )
    shape, dtype = tuple(spec.shape), np.dtype(spec.dtype).type
    if hasattr(spec, "num_values"):
        return Discrete(int(spec.num_values), dtype=dtype)
    if kind == "b":
        return MultiBinary(shape)
    least, most = (-np.inf, np.inf) if kind == "f" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    bounds = getattr(spec, "minimum", least), getattr(spec, "maximum", most)
    low, high = (np.broadcast_to(np.asarray(bound, dtype), shape) for bound in bounds)
    return Box(low, high, dtype=dtype)
