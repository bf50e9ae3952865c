"""Environments of an own suite that stack frames, with lives: a lost one may end the game."""

import gymnasium
import jax
import numpy as np

from sebulba.envs.base import reset_row
from sebulba.types import EnvironmentSpec, EnvStep, FrameStack

SIZE, FRAME = 3, 2


def make(config, *, num_envs, seed):
    """Return the environments; options: `fill`, as in `FrameStack`, and `lives`, whether it has."""
    return Stacked(num_envs=num_envs, seed=seed, **config.options)


class Stacked:
    """Episodes of one to six steps over frames of two random numbers, concatenated.

    With lives, an episode is one, and two of three leave the stack when they are lost. Some of the
    others end the game, and the rest a game that has begun and ended in between.
    """

    def __init__(self, *, num_envs, seed, fill="repeat", lives=False):
        self.num_envs = num_envs
        self.spec = EnvironmentSpec(
            observation=jax.ShapeDtypeStruct((SIZE * FRAME,), np.float32),
            action_space=gymnasium.spaces.Discrete(2, dtype=np.int32),
            frame_stack=FrameStack(size=SIZE, axis=0, fill=fill),
        )
        self._rng = np.random.default_rng(seed)
        self._fill, self._lives = fill, lives
        self._done = np.zeros(num_envs, bool)
        self._frames = np.zeros((num_envs, SIZE, FRAME), np.float32)

    def _show(self, begins):
        frame = self._rng.choice([-1.0, -0.0, 0.0, 1.0], (self.num_envs, FRAME)).astype(np.float32)
        older = frame if self._fill == "repeat" else np.zeros_like(frame)
        began = np.stack([*[older] * (SIZE - 1), frame], axis=1)
        added = np.concatenate([self._frames[:, 1:], frame[:, None]], axis=1)
        self._frames = np.where(begins[:, None, None], began, added)
        return self._frames.reshape(self.num_envs, -1).copy()

    def reset(self):
        shown = self._show(np.ones(self.num_envs, bool))
        return reset_row(shown, num_envs=self.num_envs, reports_game_over=self._lives)

    def step(self, action):
        is_first, ends = self._done, self._rng.random(self.num_envs) < 0.3
        begins = is_first
        if self._lives:
            begins = is_first & (self._rng.random(self.num_envs) < 1 / 3)
        self._done = ends & ~is_first
        reward = (self._rng.random(self.num_envs) + action).astype(np.float32)
        over = self._done & (self._rng.random(self.num_envs) < 0.5)
        return EnvStep(
            observation=self._show(begins),
            reward=np.where(is_first, np.float32(0), reward),
            terminated=self._done,
            truncated=np.zeros(self.num_envs, bool),
            is_first=is_first,
            episode_over=over if self._lives else None,
        )

    def fused(self):
        return None

    def close(self):
        """Do nothing."""
