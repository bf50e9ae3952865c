"""Random streams that keep the stream contract, and their episodes, for tests of agents."""

import numpy as np

from sebulba.types import EnvStep


def random_env_steps(seed, length, num_envs, observation_shape=(3,), done_probability=0.3):
    """Returns `[T + 1, B]` rows with terminations, truncations and resets among them."""
    rng = np.random.default_rng(seed)
    shape = (length + 1, num_envs)
    terminated, truncated, is_first = (np.zeros(shape, bool) for _ in range(3))
    is_first[0] = rng.random(num_envs) < 0.5
    for t in range(length + 1):
        if t > 0:
            is_first[t] = terminated[t - 1] | truncated[t - 1]
        done = ~is_first[t] & (rng.random(num_envs) < done_probability)
        terminated[t] = done & (rng.random(num_envs) < 0.5)
        truncated[t] = done & ~terminated[t]
    reward = rng.normal(size=shape).astype(np.float32)
    return EnvStep(
        observation=rng.normal(size=(*shape, *observation_shape)).astype(np.float32),
        reward=np.where(is_first, np.float32(0), reward),
        terminated=terminated,
        truncated=truncated,
        is_first=is_first,
    )


def runs_of_valid(valid):
    """Yields `(b, start, stop)`: transitions `start … stop - 1` of environment `b` in one episode.

    Args:
        valid: `[T, B]` bool.
    """
    length, num_envs = valid.shape
    for b in range(num_envs):
        start = 0
        for t in range(length + 1):
            if t == length or not valid[t, b]:
                if t > start:
                    yield b, start, t
                start = t + 1
