"""The worker processes of Gymnasium's asynchronous vector environments: waiting, failing, ending.

Imported by the workers too, so it imports no jax.
"""

import multiprocessing
import traceback
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, VectorEnv

_DEATH_S = 1.0  # for the system to tell of a process whose pipe has broken


class CheckedObservations(gymnasium.Wrapper):
    """Raises where an observation is not of its space's shape and dtype.

    The workers' shared memory would take it, and repeat or cast its numbers.
    """

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Resets the environment."""
        observation, info = self.env.reset(**kwargs)
        self._check(observation)
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Steps the environment."""
        result = self.env.step(action)
        self._check(result[0])
        return result

    def _check(self, observation: Any) -> None:
        for mismatch in mismatches(observation, self.observation_space):
            raise TypeError(mismatch)


def mismatches(
    observation: Any, space: gymnasium.Space, path: str = "observation"
) -> Iterator[str]:
    """Yields what is wrong with the structure of one environment's observation."""
    if isinstance(space, gymnasium.spaces.Dict | gymnasium.spaces.Tuple):
        children = space.items() if isinstance(space, gymnasium.spaces.Dict) else enumerate(space)
        for name, child in children:
            try:
                part = observation[name]
            except (LookupError, TypeError):
                yield f"{path}.{name}: expected {child}, got no such leaf"
                continue
            yield from mismatches(part, child, f"{path}.{name}")
        return
    array = np.asarray(observation)
    is_narrower = np.can_cast(array.dtype, space.dtype, "same_kind")
    if array.shape != space.shape or not is_narrower:
        yield (
            f"{path}: expected {space.dtype}{list(space.shape)}, got"
            f" {array.dtype}{list(array.shape)}"
        )


def describe_worker(vector_env: AsyncVectorEnv) -> str | None:
    """Returns which worker has failed, and how, if one has."""
    for env, pipe in enumerate(vector_env.parent_pipes):
        if pipe is None:  # Gymnasium shuts a worker's pipe that has told of an error.
            return f"env {env}"
    for process in vector_env.processes:
        process.join(_DEATH_S / len(vector_env.processes))
    for env, process in enumerate(vector_env.processes):
        if process.exitcode is not None:
            return f"env {env}: its worker process ended with code {process.exitcode}"
    return None


def describe_silent(vector_env: AsyncVectorEnv) -> str:
    """Returns which workers have not answered."""
    silent = [
        env for env, pipe in enumerate(vector_env.parent_pipes) if pipe is None or not pipe.poll(0)
    ]
    return f"env {', '.join(map(str, silent))}"


def kill(vector_env: AsyncVectorEnv) -> None:
    """Ends all workers at once; Gymnasium's own way waits for one that has died."""
    for process in vector_env.processes:
        process.kill()
    for process in vector_env.processes:
        process.join()
    for pipe in vector_env.parent_pipes:
        if pipe is not None:
            pipe.close()
    vector_env.closed = True


def describe_environment(error: Exception, vector_env: VectorEnv) -> str | None:
    """Returns which environment of a vector environment in this process failed, if it is known."""
    for env, observation in enumerate(getattr(vector_env, "_env_obs", ())):
        if observation is not None:
            for mismatch in mismatches(observation, vector_env.single_observation_space):
                return f"env {env}: {mismatch}"
    for frame, _ in traceback.walk_tb(error.__traceback__):
        # Of Gymnasium's loop over its environments.
        if frame.f_locals.get("self") is vector_env and "i" in frame.f_locals:
            return f"env {frame.f_locals['i']}"
    return None


TimedOut = multiprocessing.TimeoutError
