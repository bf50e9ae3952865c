"""Gymnasium environments that fail as they are told. Worker processes import this: no jax."""

import os
import signal
import time

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

EPISODE_LENGTH = 7


class Faulty(gymnasium.Env):
    """Counts its steps, and fails in one of them if it was seeded so, until it is seeded anew.

    Observations are the step of the episode, the number of the episode and the seed's last digits.
    """

    observation_space = Box(-np.inf, np.inf, (3,), np.float32)
    action_space = Discrete(2)

    def __init__(self, fault="none", seeds=(), at_step=3):
        if fault == "constructor":
            raise RuntimeError("no such machine")
        self._fault, self._seeds, self._at_step = fault, seeds, at_step

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self._seed, self._steps, self._episodes = seed, 0, 0
        if self._fault == "reset" and self._seed in self._seeds:
            raise RuntimeError("no way back")
        self._t, self._episodes = 0, self._episodes + 1
        return self._observation(), {}

    def step(self, action):
        self._t, self._steps = self._t + 1, self._steps + 1
        observation, reward, over = self._observation(), 1.0, self._t == EPISODE_LENGTH
        if self._steps == self._at_step and self._seed in self._seeds:
            observation, reward = self._fail(observation)
        return observation, reward, over, False, {}

    def _fail(self, observation):
        if self._fault == "step":
            raise ArithmeticError("the pole is off")
        if self._fault == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if self._fault == "hang":
            time.sleep(3600)
        if self._fault == "shape":
            return observation[:1], 1.0
        if self._fault == "dtype":
            return observation.astype(np.complex64), 1.0
        if self._fault == "nan":
            observation[1] = np.nan
        return observation, {"infinite reward": np.inf}.get(self._fault, 1.0)

    def _observation(self):
        return np.array([self._t, self._episodes, self._seed % 1000], np.float32)


gymnasium.register("Faulty-v0", entry_point=Faulty, disable_env_checker=True)
