"""Environments with side effects: each makes a file. Worker processes import this: no jax."""

import pathlib

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete


class Marking(gymnasium.Env):
    """Makes a file that must not exist, named by its purpose and its number; has short episodes."""

    observation_space, action_space = Box(-9.0, 9.0, (2,)), Discrete(2)

    def __init__(self, directory, length=3, purpose="unknown", env_index=-1):
        self._length = length
        if directory is None:
            return
        with (pathlib.Path(directory) / f"{purpose}-{env_index}").open("x"):
            pass

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self._t += 1
        return np.zeros(2, np.float32), 1.0, self._t == self._length, False, {}


class Unaware(Marking):
    """Makes a single file, whatever its number and purpose are; fails if it exists."""

    def __init__(self, directory, length=3):
        super().__init__(directory, length, "any", 0)


class OldMarking:
    """Is no subclass of `gymnasium.Env`."""

    observation_space, action_space = Marking.observation_space, Marking.action_space

    def __init__(self, directory, env_index):
        (pathlib.Path(directory) / f"old-{env_index}").touch()

    def reset(self):
        return np.zeros(2, np.float32)

    def step(self, action):
        return np.zeros(2, np.float32), 1.0, False, {}


def make_marking(directory, env_index):
    """A factory of the user's own that asks for the number alone."""
    return Marking(directory, purpose="made", env_index=env_index)


class MarkingWrapper(gymnasium.Wrapper):
    """A wrapper with a file of its own."""

    def __init__(self, env, directory, env_index):
        super().__init__(env)
        (pathlib.Path(directory) / f"wrapper-{env_index}").touch()
