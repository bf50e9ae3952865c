"""Gymnasium wrappers of this package. Worker processes import it, so it must not import jax."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple

from sebulba.envs.actions import agent_action_space, flat_mask, num_choices

ACTION_MASK = "action_mask"
"""The key of an action mask in a Dict observation, and in `info`."""


class MaskFromInfo(gymnasium.Wrapper):
    """Add the action mask in `info`, or that of the method `action_masks()`, to the observation.

    The environment must report it in every step, except in the last one of an episode.
    """

    def __init__(self, env: gymnasium.Env, key: str = ACTION_MASK):
        """Wrap an environment.

        Args:
            env: its actions are discrete; the mask is of one choice after another, or has the
                structure of the action.
            key: of the mask in `info`.
        """
        super().__init__(env)
        self._key = key
        self._size = sum(num_choices(agent_action_space(env.action_space)))
        mask = gymnasium.spaces.MultiBinary(self._size)
        self.observation_space = gymnasium.spaces.Dict(
            {"observation": env.observation_space, ACTION_MASK: mask}
        )

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        observation, info = self.env.reset(**kwargs)
        return self._with_mask(observation, info, is_last=False), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take one step."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        is_last = bool(terminated or truncated)
        observation = self._with_mask(observation, info, is_last=is_last)
        return observation, reward, terminated, truncated, info

    def _with_mask(self, observation: Any, info: dict[str, Any], *, is_last: bool) -> Any:
        if self._key in info:
            mask = info[self._key]
        elif self.env.has_wrapper_attr("action_masks"):
            mask = self.env.get_wrapper_attr("action_masks")()
        elif is_last:
            mask = np.ones(self._size)
        else:
            raise KeyError(
                f"expected info[{self._key!r}] or a method action_masks() in every step, got info"
                f" with {sorted(info)}; remove MaskFromInfo from env.wrappers, or set its `key`"
            )
        mask = flat_mask(self.env.action_space, mask).astype(np.int8)
        return {"observation": observation, ACTION_MASK: mask}


class DiscretizedBoxes(gymnasium.ActionWrapper):
    """Offer `bins` evenly spaced values, from bound to bound, for each continuous component.

    An action with discrete and continuous parts then is one vector of choices.
    """

    def __init__(self, env: gymnasium.Env, bins: int = 11):
        """Wrap an environment.

        Args:
            env: its continuous actions have bounds.
            bins: number of values, at least 2.
        """
        super().__init__(env)
        if bins < 2:
            raise ValueError(f"bins: expected at least 2, got {bins}")
        self._bins = bins
        self.action_space = self._discretized(env.action_space)

    def action(self, action: Any) -> Any:
        """Return the action of the environment inside."""
        return self._values(self.env.action_space, action)

    def _discretized(self, space: gymnasium.Space) -> gymnasium.Space:
        if isinstance(space, Dict):
            return Dict([(name, self._discretized(child)) for name, child in space.items()])
        if isinstance(space, Tuple):
            return Tuple([self._discretized(child) for child in space])
        if not _is_continuous(space):
            return space
        if not space.is_bounded():
            raise ValueError(f"expected continuous actions with bounds, got {space}")
        if not space.shape:
            return Discrete(self._bins)
        return MultiDiscrete(np.full(space.shape, self._bins))

    def _values(self, space: gymnasium.Space, action: Any) -> Any:
        if isinstance(space, Dict):
            return {name: self._values(child, action[name]) for name, child in space.items()}
        if isinstance(space, Tuple):
            return tuple(map(self._values, space, action))
        if not _is_continuous(space):
            return action
        share = np.asarray(action) / (self._bins - 1)
        return ((1.0 - share) * space.low + share * space.high).astype(space.dtype)


def _is_continuous(space: gymnasium.Space) -> bool:
    return isinstance(space, Box) and np.issubdtype(space.dtype, np.floating)
