"""Environments with mistakes of the kind that beginners make, and what is wrong with each."""

import gymnasium
import jax
import numpy as np
from gymnasium.spaces import Box, Discrete


class Sound(gymnasium.Env):
    """Has no mistake."""

    observation_space, action_space = Box(-1.0, 1.0, (2,)), Discrete(2)

    def __init__(self, size=1):
        pass

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 1.0, False, False, {}


class NoObservationSpace(gymnasium.Env):
    action_space = Discrete(2)


class ActionSpaceOfANumber(Sound):
    action_space = 2


class NoStep(gymnasium.Env):
    observation_space, action_space = Sound.observation_space, Discrete(2)
    reset = Sound.reset


class NoReset(gymnasium.Env):
    observation_space, action_space = Sound.observation_space, Discrete(2)
    step = Sound.step


class NeedsDepth(Sound):
    def __init__(self, depth):
        pass


class TypeErrorInside(Sound):
    def __init__(self):
        self.size = 1 + "1"


class NoActions(Sound):
    action_space = Box(-1.0, 1.0, (0,))


class NothingToObserve(Sound):
    observation_space = Box(-1.0, 1.0, (0,))


class Different(Sound):
    """Each instance has another observation space."""

    sizes = iter(range(1, 100))

    def __init__(self):
        self.observation_space = Box(-1.0, 1.0, (next(Different.sizes),))


def returns_a_number():
    return 3


an_instance = Sound()
gymnasium.register("NoClass-v0", entry_point=f"{__name__}:Nothing")
gymnasium.register("NoModule-v0", entry_point="no_module_at_all:Nothing")
gymnasium.register("WrongKwargs-v0", entry_point=Sound, kwargs={"siz": 1})


class ShapeAsObservation:
    """A JAX task."""

    observation, action_space = (2,), Discrete(2)

    def reset(self, key):
        return 0, jax.numpy.zeros(2)

    def step(self, state, action, key):
        return state, jax.numpy.zeros(2), 1.0, False, False


def make_nothing(config, *, num_envs, seed):
    return None


def make_without_arguments():
    return None


def make_single(config, *, num_envs, seed):
    return Sound()
