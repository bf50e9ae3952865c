"""A Gymnasium environment that returns what it is told. Worker processes import this: no jax."""

import decimal

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

VALUES = {
    "None": None,
    "text": "1.0",
    "list": [1.0],
    "number": 0.5,
    "complex": 1j,
    "float64[1]": np.ones(1),
    "float64[2]": np.ones(2),
    "bool[1]": np.ones(1, bool),
    "float32[2]": np.ones(2, np.float32),
    "float32[3]": np.ones(3, np.float32),
    "float32[1, 2]": np.ones((1, 2), np.float32),
    "9": 9,
    "int64 70000": np.array([1, 70_000]),
    "1.5": 1.5,
    "float32[]": np.float32(1.0),
    "int64[]": np.array(1),
    "decimal": decimal.Decimal("0.5"),
    "result of a reset": (np.zeros(2, np.float32), {}),
    "ragged list": [1.0, [1.0]],
    "x alone": {"x": np.ones(2, np.float32)},
}
GOOD = (np.ones(2, np.float32), 1.0, False, False, {})


class Returning(gymnasium.Env):
    """Returns one value of another type than it should, from `reset` or `step`, in environment 1.

    With `at` "step", `value` replaces the whole result, and with "reset" that of `reset`.
    """

    observation_space, action_space = Box(-9.0, 9.0, (2,)), Discrete(2)

    def __init__(self, at="none", value="None", space="box", env_index=None):
        self._at, self._value = at, VALUES.get(value)
        self._is_short, self._is_old = value == "3 values", value == "4 values"
        self._good = np.ones(2, np.float32)
        if space == "discrete":
            self.observation_space, self._good = Discrete(5), 3
        if space == "int16":
            self.observation_space, self._good = Box(-9, 9, (2,), np.int16), np.ones(2, np.int16)
        if space == "dict":
            self.observation_space = Dict({"x": Box(-9.0, 9.0, (2,)), "y": Discrete(5)})
            self._good = {"x": np.ones(2, np.float32), "y": 1}

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            self._is_wrong = seed % 2 == 1
        result = {"observation": self._good, "info": {}}
        return self._returned("reset", result)

    def step(self, action):
        result = {
            "observation": self._good,
            "reward": 1.0,
            "terminated": False,
            "truncated": False,
            "info": {"env": "only"} if self._is_wrong else {"env": np.ones(3)},
        }
        return self._returned("step", result)

    def _returned(self, method, result):
        where, _, what = self._at.partition(" ")
        if not self._is_wrong or where != method:
            return tuple(result.values())
        if self._is_old:
            return tuple(result.values())[1:]
        if self._is_short:
            return tuple(result.values())[:3]
        if not what:
            return self._value
        return tuple((result | {what: self._value}).values())


class Reusing(gymnasium.Env):
    """Counts steps, and writes every observation into the same array."""

    observation_space, action_space = Box(0.0, np.inf, (2,)), Discrete(2)

    def __init__(self):
        self._count = np.zeros(2, np.float32)

    def reset(self, *, seed=None, options=None):
        self._count[:] = 1.0
        return self._count, {}

    def step(self, action):
        self._count += 1.0
        return self._count, 1.0, bool(self._count[0] == 7.0), False, {}


class NoSeed(gymnasium.Env):
    """Has a `reset` without arguments."""

    observation_space, action_space = Box(-9.0, 9.0, (2,)), Discrete(2)

    def reset(self):
        return np.ones(2, np.float32), {}

    def step(self, action):
        return np.ones(2, np.float32), 1.0, False, False, {}


class Unsent(Exception):
    """Can be made neither from its message nor by unpickling."""

    def __init__(self, code, *, where):
        super().__init__(f"code {code} at {where}")
        self.unsendable = lambda: None


class Raising(Returning):
    """Raises what cannot be sent from one process to another."""

    def step(self, action):
        raise Unsent(7, where="pump")


class Scaled(gymnasium.Wrapper):
    """A wrapper that computes with rewards; the reward must be sound before."""

    def step(self, action):
        observation, reward, *rest = self.env.step(action)
        return observation, 2.0 * reward, *rest


class Wrong(gymnasium.Wrapper):
    """A wrapper whose own rewards are wrong."""

    def step(self, action):
        observation, reward, *rest = self.env.step(action)
        return observation, np.array([reward]), *rest
