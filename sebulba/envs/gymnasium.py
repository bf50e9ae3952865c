"""Gymnasium: any registered environment, in one process or one process each."""

from typing import Any

import gymnasium
import jax
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, VectorEnv

from sebulba.config import EnvConfig
from sebulba.config.plugins import import_module
from sebulba.envs import gymnasium_workers, spaces
from sebulba.envs.base import EnvironmentFault, EnvironmentTimeout, reset_row
from sebulba.envs.lookup import describe_namespace
from sebulba.errors import ConfigError, did_you_mean
from sebulba.types import EnvironmentSpec, EnvStep, PyTree

_VECTORIZATION_MODES = ("sync", "async", "vector_entry_point")


def make(config: EnvConfig, *, num_envs: int, seed: int) -> "GymnasiumEnvironment":
    """Makes `gymnasium.make_vec(env.id, num_envs, **env.options)`.

    Of the options, `vectorization_mode` is `sync` (default), `async` (a process for each
    environment) or `vector_entry_point`; `vector_kwargs` go to the vector environment, all others
    to the environment. `module:Id` imports the module, which registers the id.

    Raises:
        ConfigError: Gymnasium has no such environment or option, or the environment is
            of a kind that the stream contract does not cover.
    """
    vector_env = _make_vec(config, num_envs, _vector_options(config.options))
    try:
        _check_autoreset(config, vector_env)
        return GymnasiumEnvironment(vector_env, seed=seed)
    except ConfigError:
        vector_env.close()
        raise


def ids() -> list[str]:
    """Returns every id that Gymnasium has registered, those of imported packages included."""
    return list(gymnasium.registry)


class GymnasiumEnvironment:
    """A Gymnasium vector environment that resets on the next step as an `Environment`."""

    def __init__(self, vector_env: VectorEnv, *, seed: int):
        self.num_envs = vector_env.num_envs
        self.spec = EnvironmentSpec(
            observation=spaces.observation_spec(vector_env.single_observation_space),
            action_space=spaces.agent_action_space(vector_env.single_action_space),
            native_action_space=vector_env.single_action_space,
        )
        self._to_environment = spaces.action_scaling(vector_env.single_action_space)
        self._vector_env = vector_env
        self._seed = seed
        self._done = np.zeros(self.num_envs, bool)
        self.timeout_s: float | None = None  # for a step or a reset of worker processes

    def reset(self) -> EnvStep:
        """Starts all episodes; see `Environment.reset`."""
        return self._begin(seed=self._seed)

    def restart(self) -> EnvStep:
        """Begins an episode in every environment, by the random state that it has come to."""
        return self._begin()

    def _begin(self, **kwargs: Any) -> EnvStep:
        observation, _ = self._guarded("reset", **kwargs)
        self._done = np.zeros(self.num_envs, bool)
        return reset_row(self._copy(observation), num_envs=self.num_envs)

    def step(self, action: np.ndarray) -> EnvStep:
        """Steps all environments; see `Environment.step`."""
        spaces.check_action(action, self.spec.action_space, self.num_envs)
        action = self._to_environment(action)
        action = action.astype(self._vector_env.single_action_space.dtype, copy=False)
        observation, reward, terminated, truncated, _ = self._guarded("step", action)
        env_step = EnvStep(
            observation=self._copy(observation),
            reward=np.where(self._done, 0.0, reward).astype(np.float32),
            terminated=np.array(terminated, bool),
            truncated=np.array(truncated, bool),
            is_first=self._done,
        )
        self._done = env_step.done
        return env_step

    def fused(self) -> None:
        """Returns None: Python runs the environments."""

    def settings(self) -> dict[str, Any]:
        """Returns what Gymnasium made the environment with."""
        spec = self._vector_env.spec
        if spec is None:
            return {}
        return {"max_episode_steps": spec.max_episode_steps, **spec.kwargs}

    def render(self) -> np.ndarray:
        """Returns the first environment's picture; needs `env.options.render_mode: rgb_array`."""
        envs = getattr(self._vector_env, "envs", None)
        return envs[0].render() if envs else self._vector_env.render()[0]

    def close(self) -> None:
        """Ends the worker processes, if any; may be called twice."""
        self._vector_env.close()

    def _guarded(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Calls a method of the vector environment, within the time that worker processes have.

        Raises:
            EnvironmentTimeout: a worker process did not answer; all of them are killed.
            EnvironmentFault: which environment failed, where that is known.
        """
        env = self._vector_env
        try:
            if not isinstance(env, AsyncVectorEnv):
                return getattr(env, name)(*args, **kwargs)
            getattr(env, f"{name}_async")(*args, **kwargs)
            return getattr(env, f"{name}_wait")(timeout=self.timeout_s)
        except Exception as error:
            raise _explained(error, env, name) from error

    def _copy(self, observation: PyTree) -> PyTree:
        # Vector environments may write every observation into the same memory.
        def copy(spec: jax.ShapeDtypeStruct, leaf: np.ndarray) -> np.ndarray:
            return np.array(leaf, spec.dtype)

        return jax.tree.map(copy, self.spec.observation, observation)


def _explained(error: Exception, vector_env: VectorEnv, name: str) -> EnvironmentFault:
    raised = f"{name} raised {type(error).__name__}: {error}"
    if not isinstance(vector_env, AsyncVectorEnv):
        where = gymnasium_workers.describe_environment(error, vector_env)
        return EnvironmentFault(raised if where is None else f"{where}: {raised}")
    fault: EnvironmentFault
    if isinstance(error, gymnasium_workers.TimedOut):
        silent = gymnasium_workers.describe_silent(vector_env)
        fault = EnvironmentTimeout(f"{silent}: {error} (actor.env_timeout_s)")
    else:
        where = gymnasium_workers.describe_worker(vector_env)
        fault = EnvironmentFault(raised if where is None else f"{where}: {raised}")
    gymnasium_workers.kill(vector_env)
    return fault


def _vector_options(options: dict[str, Any]) -> dict[str, Any]:
    options = dict(options)
    if "num_envs" in options:
        raise ConfigError("env.options.num_envs: not an option here: set actor.num_envs")
    mode = options.setdefault("vectorization_mode", "sync")
    if mode not in _VECTORIZATION_MODES:
        raise ConfigError(
            f"env.options.vectorization_mode: there is no mode {mode!r}"
            f"{did_you_mean(str(mode), _VECTORIZATION_MODES)}"
        )
    defaults = {
        "sync": {"copy": False},
        "async": {"copy": False, "context": "spawn"},  # A fork copies the locks of JAX's threads.
        "vector_entry_point": {},
    }[mode]
    if mode == "async":
        checked = gymnasium_workers.CheckedObservations
        options["wrappers"] = [*(options.get("wrappers") or ()), checked]
    return options | {"vector_kwargs": defaults | options.get("vector_kwargs", {})}


def _make_vec(config: EnvConfig, num_envs: int, options: dict[str, Any]) -> VectorEnv:
    module, _, name = config.id.rpartition(":")
    if module:
        import_module(module, key="env.id")
    try:
        return gymnasium.make_vec(config.id, num_envs, **options)
    except gymnasium.error.UnregisteredEnv as error:
        raise ConfigError(
            f"env.id: Gymnasium has no {config.id!r}{did_you_mean(name, gymnasium.registry)}"
            f"{'' if module else describe_namespace(name)}"
        ) from error
    except gymnasium.error.Error as error:
        raise ConfigError(f"env.id {config.id!r}: {error}") from error
    except TypeError as error:
        if "unexpected keyword argument" not in str(error):
            raise
        raise ConfigError(
            f"env.options: {config.id!r} refuses {config.options}: {error}"
        ) from error


def _check_autoreset(config: EnvConfig, vector_env: VectorEnv) -> None:
    mode = vector_env.metadata.get("autoreset_mode")
    if mode != AutoresetMode.NEXT_STEP:
        raise ConfigError(
            f"env.id: the vector environment of {config.id!r} has the autoreset mode {mode}, "
            f"expected {AutoresetMode.NEXT_STEP}: leave autoreset_mode out of "
            "env.options.vector_kwargs, and if the environment brings its own vector environment, "
            "set env.options.vectorization_mode to sync or async"
        )
