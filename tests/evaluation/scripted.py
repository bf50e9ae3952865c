"""Environments with known episodes: those of environment `b` take `b + 1` steps."""

import gymnasium
import jax
import numpy as np

from sebulba.envs.base import EnvironmentTimeout
from sebulba.types import EnvironmentSpec, EnvStep

SEEDS = []
"""With which `make` was called."""


class ScriptedEnvironment:
    """Reward 1 per step. With `lives`, a game has that many, and each is an episode of the stream.

    With `hangs`, every step times out.
    """

    def __init__(self, *, num_envs, lives, never_ends, hangs):
        self.num_envs = num_envs
        self.timeout_s = None
        self.spec = EnvironmentSpec(
            observation=jax.ShapeDtypeStruct((3,), np.float32),
            action_space=gymnasium.spaces.Discrete(2, dtype=np.int32),
        )
        self.is_closed = False
        self._lives, self._never_ends, self._hangs = lives, never_ends, hangs
        self._elapsed = np.zeros(num_envs, int)
        self._lives_lost = np.zeros(num_envs, int)
        self._done = np.zeros(num_envs, bool)

    def reset(self):
        return self._row(np.ones(self.num_envs, bool))

    def step(self, action):
        if self._hangs:
            raise EnvironmentTimeout(f"no answer within {self.timeout_s} s")
        is_first = self._done
        self._elapsed = np.where(is_first, 0, self._elapsed + 1)
        return self._row(is_first)

    def _row(self, is_first):
        lengths = np.arange(1, self.num_envs + 1)
        self._done = (self._elapsed >= lengths) & ~is_first & (not self._never_ends)
        self._lives_lost += self._done
        over = self._done & (self._lives_lost % (self._lives or 1) == 0)
        return EnvStep(
            observation=np.zeros((self.num_envs, 3), np.float32),
            reward=np.where(is_first, 0, 1).astype(np.float32),
            terminated=self._done,
            truncated=np.zeros(self.num_envs, bool),
            is_first=is_first,
            episode_over=over if self._lives else None,
        )

    def fused(self):
        return None

    def close(self):
        self.is_closed = True


def make(config, *, num_envs, seed):
    """Create the environments; options: `lives`, `never_ends` and `hangs`."""
    SEEDS.append(seed)
    return ScriptedEnvironment(
        num_envs=num_envs,
        lives=config.options.get("lives"),
        never_ends=config.options.get("never_ends", False),
        hangs=config.options.get("hangs", False),
    )
