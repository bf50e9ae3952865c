"""Wrappers for the tests, as a user would write them; worker processes import this module."""

import dataclasses
from typing import Any

import gymnasium


class AddToReward(gymnasium.RewardWrapper):
    """Adds to every reward."""

    def __init__(self, env, amount=1.0):
        super().__init__(env)
        self._amount = amount

    def reward(self, reward):
        return reward + self._amount


class TimesReward(gymnasium.RewardWrapper):
    """Multiplies every reward."""

    def __init__(self, env, factor):
        super().__init__(env)
        self._factor = factor

    def reward(self, reward):
        return reward * self._factor


class Lasts(gymnasium.Wrapper):
    """Takes a positive number of steps only."""

    def __init__(self, env, num_steps):
        super().__init__(env)
        if num_steps < 1:
            raise ValueError("no steps are left")


@dataclasses.dataclass(frozen=True)
class ScaledTask:
    """Multiplies the rewards of a JAX task."""

    task: Any
    factor: float = 2.0

    def __getattr__(self, name):
        return getattr(self.task, name)

    def step(self, state, action, key):
        state, observation, reward, *flags = self.task.step(state, action, key)
        return state, observation, self.factor * reward, *flags


@dataclasses.dataclass(frozen=True)
class MasklessTask:
    """Forgets the action mask of the task."""

    task: Any

    def __post_init__(self):
        for name in ("observation", "action_space", "reset", "step"):
            object.__setattr__(self, name, getattr(self.task, name))


def forgets_to_return(environment):
    """Is no wrapper."""


def register_environments():
    """Register an id when it is asked to."""
    gymnasium.register("Asked-v0", entry_point="gymnasium.envs.classic_control:CartPoleEnv")
