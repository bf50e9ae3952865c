"""Gymnasium wrappers of this package. Worker processes import it, so it must not import jax."""

from typing import Any

import gymnasium
import numpy as np

from sebulba.envs.actions import (
    agent_action_space,
    discretized,
    flat_mask,
    num_choices,
    undiscretized,
)

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

        Raises:
            ConfigError: a component has no bounds, or there are too few values.
        """
        super().__init__(env)
        self._bins = bins
        self.action_space = discretized(env.action_space, bins)

    def action(self, action: Any) -> Any:
        """Return the action of the environment inside."""
        return undiscretized(self.env.action_space, self._bins, action)
