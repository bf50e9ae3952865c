"""Classes with the interface that Gym had before Gymnasium: `step` returns a single `done`.

Worker processes import this module, so it must not import jax.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np

from sebulba.envs.gymnasium_results import is_flag
from sebulba.errors import ConfigError


def has_old_interface(made: Any) -> bool:
    """Return whether it is a class that Gymnasium refuses, with methods `reset` and `step`."""
    if not isinstance(made, type) or issubclass(made, gymnasium.Env):
        return False
    return hasattr(made, "reset") and hasattr(made, "step")


class OldGym(gymnasium.Env):
    """An environment of a class with the old interface, for Gymnasium.

    An episode that is done was truncated if `info` has a true `TimeLimit.truncated`, or, as in
    Crafter, a `discount` of 1. A seed is given to the constructor, if it has a parameter of that
    name, or to the method `seed`.
    """

    def __init__(self, cls: Callable[..., Any], **options: Any):
        """Create an environment.

        Args:
            cls: its class.
            options: arguments of the class.

        Raises:
            ConfigError: it has no spaces, so it is not of that interface.
        """
        self._cls, self._options = cls, options
        self.own_class = cls
        self._env = cls(**options)
        for space in ("observation_space", "action_space"):
            if not hasattr(self._env, space):
                raise ConfigError(
                    f"env.id: expected an environment of Gymnasium, got {cls.__name__}, which does"
                    f" not derive from gymnasium.Env and has no {space}. If it is of another"
                    " interface, set env.suite, for example to jax"
                )
        self.observation_space = _to_gymnasium(self._env.observation_space)
        self.action_space = _to_gymnasium(self._env.action_space)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        super().reset(seed=seed)
        if seed is not None and "seed" in inspect.signature(self._cls).parameters:
            self._env = self._cls(**{"seed": seed, **self._options})
        elif seed is not None and hasattr(self._env, "seed"):
            self._env.seed(seed)
        result = self._env.reset()
        # Gym 0.26 returned `info` too.
        is_pair = isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)
        return result if is_pair else (result, {})

    def step(self, action: Any) -> Any:
        """Take one step; a result that is not of the old interface is returned unchanged."""
        result = self._env.step(action)
        if not isinstance(result, tuple) or len(result) != 4:
            return result  # Gym 0.26 returned `terminated` and `truncated`
        observation, reward, done, info = result
        if not is_flag(done) or not isinstance(info, dict):
            return observation, reward, done, False, info
        truncated = bool(done) and bool(
            info.get("TimeLimit.truncated", False) or info.get("discount", 0.0) == 1.0
        )
        return observation, reward, bool(done) and not truncated, truncated, info

    def close(self) -> None:
        """Close the environment, if it can be closed."""
        if hasattr(self._env, "close"):
            self._env.close()


def _to_gymnasium(space: Any) -> gymnasium.Space:
    """Return a space of Gym, or one that has its attributes, as Gymnasium's."""
    parts = getattr(space, "spaces", None)
    if isinstance(parts, Mapping):
        return gymnasium.spaces.Dict({name: _to_gymnasium(each) for name, each in parts.items()})
    if parts is not None:
        return gymnasium.spaces.Tuple([_to_gymnasium(each) for each in parts])
    if hasattr(space, "nvec"):
        return gymnasium.spaces.MultiDiscrete(space.nvec)
    if hasattr(space, "n") and not getattr(space, "shape", None):
        return gymnasium.spaces.Discrete(int(space.n), start=int(getattr(space, "start", 0)))
    shape = tuple(space.shape)
    if hasattr(space, "n"):  # Gym's MultiBinary has a shape, and its Discrete has not.
        return gymnasium.spaces.MultiBinary(shape)
    low, high = (np.broadcast_to(bound, shape) for bound in (space.low, space.high))
    return gymnasium.spaces.Box(low, high, dtype=np.dtype(space.dtype).type)
