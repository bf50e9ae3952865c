"""Environments of slow tests, for processes that import them by name."""

import os
import time

import gymnasium
import numpy as np


class Clock(gymnasium.Env):
    """Depends on more than its seed and its actions, and prints a line."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self):
        print("the clock ticks", flush=True)
        self._left = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._left = 100
        return self._now(), {}

    def step(self, action):
        self._left -= 1
        return self._now(), 1.0, self._left == 0, False, {}

    def _now(self):
        return np.full(1, time.perf_counter_ns() % 1000 / 1000.0, np.float32)


class Sleeping(Clock):
    """Takes for ever to be made in a process of Ray."""

    def __init__(self):
        super().__init__()
        if "RAY_RAYLET_PID" in os.environ:
            time.sleep(10_000)


class Slow(gymnasium.Env):
    """Depends on its actions alone; a step takes 20 ms, and the fifth says so."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._num_steps, self._sum = 0, 0.0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        time.sleep(0.02)
        self._num_steps += 1
        self._sum += float(action)
        if self._num_steps == 5:
            print("the fifth step", flush=True)
        return np.full(1, self._sum, np.float32), 1.0, False, False, {}


gymnasium.register("ClockOfTests-v0", Clock)
gymnasium.register("SlowOfTests-v0", Slow)
gymnasium.register("SleepingOfTests-v0", Sleeping)
