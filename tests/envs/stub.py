"""An environment that is never stepped, for tests of how environments are made."""

import jax
import numpy as np
from gymnasium.spaces import Discrete

from sebulba.types import EnvironmentSpec


class Stub:
    """The least that counts as an `Environment`; keeps what it is made from."""

    spec = EnvironmentSpec(
        observation=jax.ShapeDtypeStruct((2,), np.float32), action_space=Discrete(2)
    )
    reset = step = fused = close = None

    def __init__(self, made_from, num_envs, seed):
        self.made_from, self.num_envs = (made_from, num_envs, seed), num_envs
