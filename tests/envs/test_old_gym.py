"""Classes with the interface of Gym, named as they are: `env.id: module:Class`."""

import collections

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.spaces import Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from sebulba.config import EnvConfig
from sebulba.envs import make_environment
from sebulba.envs.old_gym import _to_gymnasium

Box = collections.namedtuple("Box", "low high shape dtype")
Count = collections.namedtuple("Count", "n")
HERE = "tests.envs.test_old_gym"


class Seeded:
    """Ends after 3 steps by a time limit, or, after the action 1, by a death; as Crafter does."""

    observation_space = Box(0, 255, (2,), np.uint8)
    action_space = Count(2)

    def __init__(self, offset=0, seed=None):
        self._first = (offset + (seed or 0)) % 200

    def reset(self):
        self._step = 0
        return self._observe()

    def step(self, action):
        self._step += 1
        is_dead = bool(action == 1)
        info = {"discount": 1.0 - float(is_dead)}
        return self._observe(), np.float64(0.5), is_dead or self._step == 3, info

    def _observe(self):
        return np.array([self._first, self._step], np.uint8)


class Limited(Seeded):
    """Has the key of Gym's own time limit, and a method for seeds."""

    def __init__(self):
        super().__init__()

    def seed(self, seed):
        self._first = seed

    def step(self, action):
        observation, reward, done, info = super().step(action)
        limited = {"TimeLimit.truncated": True} if info["discount"] == 1.0 and done else {}
        return observation, reward, done, limited


Shifted = collections.namedtuple("Shifted", "n start shape")
Many = collections.namedtuple("Many", "nvec shape dtype")
Parts = collections.namedtuple("Parts", "spaces")


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (Count(2), Discrete(2)),
        (Shifted(3, -1, ()), Discrete(3, start=-1)),
        (Shifted(3, None, (3,)), MultiBinary((3,))),
        (Many(np.array([[2, 3]]), (1, 2), np.int64), MultiDiscrete([[2, 3]])),
        (Box(-2, 2, (2,), np.int8), spaces.Box(-2, 2, (2,), np.int8)),
        (
            Parts({"a": Count(2), "b": Parts((Count(3), Box(0.0, 1.0, (1,), np.float32)))}),
            Dict(a=Discrete(2), b=Tuple([Discrete(3), spaces.Box(0.0, 1.0, (1,))])),
        ),
    ],
)
def test_each_space_of_gym_is_one_of_gymnasium(space, expected):
    assert _to_gymnasium(space) == expected


@pytest.mark.parametrize(
    ("name", "options", "mode", "first"),
    [
        ("Seeded", {"offset": 4}, "sync", [11, 12]),
        ("Seeded", {"offset": 4}, "async", [11, 12]),
        ("Limited", {}, "sync", [7, 8]),
    ],
)
def test_a_class_of_the_old_interface_is_an_environment(name, options, mode, first):
    options = options | {"vectorization_mode": mode}
    config = EnvConfig(suite="gymnasium", id=f"{HERE}:{name}", options=options)
    environment = make_environment(config, num_envs=2, seed=7)
    assert environment.reset().observation[:, 0].tolist() == first
    actions = np.array([[0, 0], [0, 1], [0, 0], [0, 0]], np.int32)
    rows = [environment.step(action) for action in actions]
    environment.close()
    terminated, truncated = (
        np.array([getattr(row, flag).tolist() for row in rows]).T.tolist()
        for flag in ("terminated", "truncated")
    )
    assert terminated == [[False] * 4, [False, True, False, False]]
    assert truncated == [[False, False, True, False], [False] * 4]
    assert [row.is_first.tolist() for row in rows[2:]] == [[False, True], [True, False]]
    assert rows[2].observation[0].tolist() == [first[0], 3]  # the final one
