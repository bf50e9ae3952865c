"""Environments of dm_env for tests. Worker processes import this: no jax."""

import dm_env
import numpy as np
from dm_env import specs

MIN_STEPS, MAX_STEPS = 6, 12  # of an episode; the upper bound is exclusive


class Walk(dm_env.Environment):
    """A walk with nested observations, which ends after a random number of steps.

    `end_discount` is that of the last step, 0: the walk terminates. `wrong` is what `step` returns
    wrongly in place of a step within an episode.
    """

    def __init__(self, seed=0, end_discount=0.0, wrong=None):
        self._rng = np.random.default_rng(seed)
        self._end_discount, self._wrong = end_discount, wrong
        self._place = np.zeros(2)  # one buffer, which every step overwrites
        self.is_closed = False

    def observation_spec(self):
        return {
            "place": specs.Array((2,), np.float64),
            "left": specs.BoundedArray((), np.int64, 0, MAX_STEPS),
            "flags": (specs.Array((1,), bool), specs.DiscreteArray(2)),
        }

    def action_spec(self):
        return specs.DiscreteArray(3, dtype=np.int32)

    def reset(self):
        self._left = int(self._rng.integers(MIN_STEPS, MAX_STEPS))
        self._place[:] = self._rng.normal(size=2)
        return dm_env.restart(self._observe())

    def step(self, action):
        self._left -= 1
        self._place += [float(action) - 1.0, self._rng.normal()]
        reward = float(self._place.sum())
        if self._left == 0:
            return dm_env.TimeStep(
                dm_env.StepType.LAST, reward, self._end_discount, self._observe()
            )
        if self._wrong == "first":
            return self.reset()
        if self._wrong == "reward":
            reward = None
        discount = {"discount": 0.9, "no discount": None}.get(self._wrong, 1.0)
        return dm_env.transition(reward, self._observe(), discount)

    def close(self):
        self.is_closed = True

    def _observe(self):
        flags = (np.array([self._left % 2 == 0]), self._left % 2)
        return {"place": self._place, "left": np.array(self._left), "flags": flags}


class Named(Walk):
    """Has a text in its observations."""

    def observation_spec(self):
        return super().observation_spec() | {"name": specs.StringArray(())}


def walk(end_discount=0.0):
    """Return an environment, without a seed."""
    return Walk(end_discount=end_discount)


def nothing():
    """Return no environment."""
    return 3


CONSTANT = 3
