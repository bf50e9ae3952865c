"""Environments that take no time, or only wait, so that the framework's own cost remains.

In a config: suite `benchmarks.environments:make`, id `Canned`, options `latency_s` and `image`.
"""

import time

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from sebulba.config import EnvConfig
from sebulba.envs.base import FusedEnvironment
from sebulba.types import EnvironmentSpec, EnvStep

VECTOR = jax.ShapeDtypeStruct((4,), jnp.float32)  # CartPole's shape
IMAGE = jax.ShapeDtypeStruct((4, 84, 84), jnp.uint8)  # Atari's shape
NUM_ACTIONS = 2
EPISODE_LENGTH = 20


def make(config: EnvConfig, *, num_envs: int, seed: int) -> "CannedEnvironment":
    """Make a `CannedEnvironment` with the options `latency_s` and `image`."""
    return CannedEnvironment(num_envs=num_envs, seed=seed, **config.options)


class CannedEnvironment:
    """Repeat one episode of random observations, whatever the actions are."""

    def __init__(self, *, num_envs: int, seed: int, latency_s: float = 0.0, image: bool = False):
        """Make the rows.

        Args:
            num_envs: `B`.
            seed: determines the observations.
            latency_s: time that each step sleeps, in seconds.
            image: observations are images like Atari's, not vectors like CartPole's.
        """
        self.num_envs = num_envs
        self.spec = EnvironmentSpec(
            observation=IMAGE if image else VECTOR,
            action_space=gymnasium.spaces.Discrete(NUM_ACTIONS),
        )
        self._latency_s = latency_s
        random = np.random.default_rng(seed)
        spec = self.spec.observation
        scale = 255 if image else 1
        self._rows = [
            EnvStep(
                observation=(scale * random.random((num_envs, *spec.shape))).astype(spec.dtype),
                reward=np.full(num_envs, row > 0, np.float32),
                terminated=np.full(num_envs, row == EPISODE_LENGTH),
                truncated=np.zeros(num_envs, bool),
                is_first=np.full(num_envs, row == 0),
            )
            for row in range(EPISODE_LENGTH + 1)
        ]
        self._index = 0

    def reset(self) -> EnvStep:
        """Begin the episode; see `Environment.reset`."""
        self._index = 0
        return self._rows[0]

    def step(self, action: np.ndarray) -> EnvStep:
        """Wait, and return the next row; see `Environment.step`."""
        del action
        if self._latency_s:
            time.sleep(self._latency_s)
        self._index = (self._index + 1) % len(self._rows)
        return self._rows[self._index]

    def fused(self) -> FusedEnvironment | None:
        """Return the traceable step; None with a latency, since a device cannot sleep."""
        if self._latency_s:
            return None
        rows = jax.tree.map(lambda *leaves: jnp.stack(leaves), *self._rows)

        def step(index: jax.Array, action: jax.Array) -> tuple[jax.Array, EnvStep]:
            del action
            index = (index + 1) % len(self._rows)
            return index, jax.tree.map(lambda leaf: leaf[index], rows)

        return FusedEnvironment(state=jnp.int32(self._index), step=step)

    def close(self) -> None:
        """Do nothing: there are no resources."""
