"""Environments with one fault each; those of Gymnasium are registered, the others are suites."""

import dataclasses

import gymnasium
import numpy as np

from sebulba.envs.base import reset_row
from sebulba.types import EnvironmentSpec, EnvStep


class Walk(gymnasium.Env):
    """Without a fault: a random walk of four to nine steps."""

    observation_space = gymnasium.spaces.Box(-10.0, 10.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(4, 10))
        self.start = self.draw()
        self.done = False
        return self.observe(), {}

    def draw(self):
        return self.np_random.random()

    def step(self, action):
        self.left -= 1
        self.done = self.done or self.left == 0
        return self.observe(), self.reward(), self.done, False, {}

    def observe(self):
        return np.array([self.start, self.left], np.float32)

    def reward(self):
        return 1.0


class Raises(Walk):
    """Raises in its third step."""

    def reward(self):
        if self.left < 3:
            raise ValueError("a wheel fell off")
        return 1.0


class GivesNaN(Walk):
    """Rewards NaN at the end of an episode."""

    def reward(self):
        return float("nan") if self.done else 1.0


class DrawsUnseeded(Walk):
    """Draws from a generator of its own."""

    def draw(self):
        return np.random.default_rng().random()


class ForgetsItsFlag(Walk):
    """Is done for ever after its first episode."""

    is_over = False

    def step(self, action):
        observation, reward, *_ = super().step(action)
        self.is_over = self.is_over or self.done
        return observation, reward, self.is_over, False, {}


for each in (Walk, Raises, GivesNaN, DrawsUnseeded, ForgetsItsFlag):
    gymnasium.register(f"{each.__name__}-v0", entry_point=each)


class Countdown:
    """Without a fault: a batch of environments whose observation is the number of the row."""

    is_view = False

    def __init__(self, num_envs):
        self.num_envs = num_envs
        self.spec = EnvironmentSpec(
            observation=np.zeros(1, np.float32),
            action_space=gymnasium.spaces.Discrete(2, dtype=np.int32),
        )
        self._observation = np.zeros((num_envs, 1), np.float32)
        self._number = 0

    def reset(self):
        return reset_row(self._observe(), num_envs=self.num_envs)

    def step(self, action):
        self._number += 1
        place = self._number % 6
        row = reset_row(self._observe(), num_envs=self.num_envs)
        return dataclasses.replace(
            row,
            reward=np.full(self.num_envs, float(place > 0), np.float32),
            terminated=np.full(self.num_envs, place == 5),
            is_first=np.full(self.num_envs, self.is_reset(place)),
        )

    def is_reset(self, place):
        return place == 0

    def _observe(self):
        self._observation[:] = self._number
        return self._observation if self.is_view else self._observation.copy()

    def fused(self):
        return None

    def close(self):
        pass


class ReturnsViews(Countdown):
    """Returns its own buffer as every observation."""

    is_view = True


class HidesResets(Countdown):
    """Never says that a row is a reset, after the first one."""

    def is_reset(self, place):
        return False


class EndsTwice(Countdown):
    """Ends an episode in the row of its reset as well."""

    def step(self, action) -> EnvStep:
        row = super().step(action)
        return dataclasses.replace(row, terminated=row.terminated | row.is_first)


class ForgetsWhoIsOut(Countdown):
    """Of two players, the second is out early, and only its first row after that says so."""

    def __init__(self, num_envs):
        super().__init__(2 * num_envs)
        self.num_envs = num_envs
        self.spec = dataclasses.replace(self.spec, num_players=2)

    def _row(self, place):
        num_rows = len(self._observation)
        row = reset_row(self._observe(), num_envs=num_rows)
        is_out = np.tile([place == 5, place in (3, 5)], self.num_envs)
        is_first = np.full(num_rows, place == 0)
        reward = np.where(is_first, 0, 1).astype(np.float32)
        return dataclasses.replace(row, reward=reward, terminated=is_out, is_first=is_first)

    def reset(self):
        return self._row(0)

    def step(self, action):
        self._number += 1
        return self._row(self._number % 6)


def countdown(config, *, num_envs, seed):
    """Make the suite of the batch that `env.id` names."""
    return globals()[config.id](num_envs)
