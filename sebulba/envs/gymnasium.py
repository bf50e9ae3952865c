"""Gymnasium: any registered environment, in this process or in one worker process each."""

import contextlib
import copy
import dataclasses
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from typing import Any

import gymnasium
import jax
import numpy as np
from gymnasium.envs.registration import EnvSpec, _find_spec
from gymnasium.vector import (
    AsyncVectorEnv,
    AutoresetMode,
    SyncVectorEnv,
    VectorEnv,
    VectorWrapper,
)

from sebulba.config import EnvConfig
from sebulba.envs import gymnasium_workers, spaces
from sebulba.envs.actions import to_native
from sebulba.envs.base import (
    EnvironmentDataError,
    EnvironmentFault,
    EnvironmentTimeout,
    reset_row,
)
from sebulba.envs.data_checks import check_integers_fit
from sebulba.envs.gymnasium_factory import EnvFactory, check_arguments, constructor
from sebulba.envs.gymnasium_registry import (
    check_observation,
    describe_unregistered,
    register,
)
from sebulba.envs.gymnasium_results import ResultError, check_batch
from sebulba.envs.gymnasium_wrappers import ACTION_MASK
from sebulba.envs.identity import Purpose, asked_for
from sebulba.envs.lookup import check_step_limit, refuse_options
from sebulba.envs.masks import ActionMasks
from sebulba.envs.wrappers import Wrapper
from sebulba.errors import ConfigError, describe_error, did_you_mean
from sebulba.types import EnvStep, FrameStack, PyTree

_VECTORIZATION_MODES = ("sync", "async", "vector_entry_point")
# Parts of Gymnasium's messages about classes that are no environments.
_REFUSALS = (
    "must inherit from the gymnasium.Env",
    "environment must specify a",
    "does not inherit from `gymnasium.spaces.Space`",
)
# Parts of those about environments that are not equal, in one process and in several.
_DIFFERENT = (
    "sub-environments observation spaces",
    "Sub-environment action space",
    "different from",
)
_VECTOR_OPTIONS = ("vectorization_mode", "vector_kwargs")

# The shapes of the masks in `info` of Gymnasium's own environments, which no space declares.
_MASKS_IN_INFO = {"Taxi": (6,)}


def make(
    config: EnvConfig,
    *,
    num_envs: int,
    seed: int,
    wrappers: Sequence[Wrapper] = (),
    purpose: Purpose = "inspect",
    env_index: int = 0,
) -> "GymnasiumEnvironment":
    """Create `gymnasium.make_vec(env.id, num_envs, **env.options)`.

    The option `vectorization_mode` is `sync` (default), `async` (one process per environment) or
    `vector_entry_point`; `vector_kwargs` go to the vector environment, other options to the
    environment. An id `module:Id` imports the module, which registers `Id` or has a class or
    function of that name; `module:function:Id` also calls `module.function()`, for packages that
    register their environments there. Wrappers are Gymnasium wrappers, or functions from one
    environment to another. Constructors and wrappers that ask for them get `env_index`, numbers
    from the given one on, and `purpose`.

    Raises:
        ConfigError: Gymnasium has no such environment or option, a wrapper is of another kind, or
            the environment has an unsupported autoreset mode or space.
        EnvironmentFault: the constructor raised in a worker process.
    """
    mode = _mode_of(config.options)
    for wrapper in wrappers:
        _check_wrapper(wrapper, mode)
    with _refusals(config):
        name = register(config.id)
        spec = name if isinstance(name, EnvSpec) else _find_spec(name)
        if mode == "vector_entry_point":
            vector_env = _make_batch(spec, config.options, num_envs, purpose, env_index)
        else:
            vector_env = _make_vec(
                spec, config, mode, num_envs, tuple(wrappers), purpose, env_index
            )
    try:
        _check_autoreset(config, vector_env)
        check_observation(vector_env.spec, vector_env.single_observation_space)
        return GymnasiumEnvironment(vector_env, seed=seed, frame_stack=_frame_stack(wrappers))
    except ConfigError:
        vector_env.close()
        raise


def ids() -> list[str]:
    """Return every id in Gymnasium's registry, including those of imported packages."""
    return list(gymnasium.registry)


class GymnasiumEnvironment:
    """A Gymnasium vector environment with autoreset on the next step, as an `Environment`."""

    def __init__(self, vector_env: VectorEnv, *, seed: int, frame_stack: FrameStack | None):
        self.num_envs = vector_env.num_envs
        action_space = vector_env.single_action_space
        name = "" if vector_env.spec is None else vector_env.spec.name
        self._masks = ActionMasks(
            vector_env.single_observation_space, action_space, in_info=_MASKS_IN_INFO.get(name)
        )
        self.spec = self._masks.spec
        if len(jax.tree.leaves(self.spec.observation)) == 1:
            self.spec = dataclasses.replace(self.spec, frame_stack=frame_stack)
        self._to_native = to_native(self.spec)
        # Of a single environment, as it declares them.
        self.observation_space, self.action_space = (
            vector_env.single_observation_space,
            action_space,
        )
        self._vector_env = vector_env
        self._seed = seed
        self._done = np.zeros(self.num_envs, bool)
        self.timeout_s: float | None = None  # for a step or a reset of worker processes

    def reset(self) -> EnvStep:
        """Start all episodes; see `Environment.reset`."""
        return self._start_episodes(seed=self._seed)

    def restart(self) -> EnvStep:
        """Start a new episode in every environment, drawn from its current random state."""
        return self._start_episodes()

    def _start_episodes(self, **kwargs: Any) -> EnvStep:
        observation, info = self._call("reset", **kwargs)
        self._refuse_unused_masks(info)
        self._done = np.zeros(self.num_envs, bool)
        observation, action_mask = self._masks.split(observation, info.get(ACTION_MASK))
        return reset_row(self._copy(observation), num_envs=self.num_envs, action_mask=action_mask)

    def step(self, action: np.ndarray) -> EnvStep:
        """Step all environments; see `Environment.step`."""
        spaces.check_action(action, self.spec.action_space, self.num_envs)
        result = self._call("step", self._to_native(action))
        observation, reward, terminated, truncated, info = result
        observation, action_mask = self._masks.split(observation, info.get(ACTION_MASK))
        env_step = EnvStep(
            observation=self._copy(observation),
            reward=np.where(self._done, 0.0, reward).astype(np.float32),
            terminated=np.array(terminated, bool),
            truncated=np.array(truncated, bool),
            is_first=self._done,
            action_mask=action_mask,
        )
        self._done = env_step.done
        return env_step

    def fused(self) -> None:
        """Return None: Gymnasium environments run in Python."""

    def settings(self) -> dict[str, Any]:
        """Return the episode limit and the arguments of the environment's constructor."""
        spec = self._vector_env.spec
        if spec is None:
            return {}
        return {"max_episode_steps": spec.max_episode_steps, **spec.kwargs}

    def render(self) -> np.ndarray:
        """Return the first environment's frame; needs `env.options.render_mode: rgb_array`."""
        envs = getattr(self._vector_env, "envs", None)
        return envs[0].render() if envs else self._vector_env.render()[0]

    def close(self) -> None:
        """End the worker processes, if any; may be called twice."""
        try:
            self._vector_env.close()
        finally:
            if isinstance(self._vector_env, AsyncVectorEnv):
                gymnasium_workers.kill_left(self._vector_env)

    def _refuse_unused_masks(self, info: dict[str, Any]) -> None:
        is_continuous = isinstance(self.spec.action_space, gymnasium.spaces.Box)
        if ACTION_MASK in info and self.spec.action_mask is None and not is_continuous:
            raise ConfigError(
                f"env.id: expected legal actions in the observation, got info[{ACTION_MASK!r}]. Set"
                " env.wrappers: [sebulba.envs.gymnasium_wrappers:MaskFromInfo]"
            )

    def _call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of the vector environment, with the timeout for worker processes.

        Raises:
            EnvironmentTimeout: a worker process did not answer in time; all of them are killed.
            EnvironmentFault: the call failed.
        """
        env = self._vector_env
        try:
            if not isinstance(env, AsyncVectorEnv):
                result = getattr(env, name)(*args, **kwargs)
                if not isinstance(env, SyncVectorEnv):  # whose environments are not checked
                    *values, _ = result
                    check_batch(*values, space=env.observation_space, num_envs=self.num_envs)
                return result
            getattr(env, f"{name}_async")(*args, **kwargs)
            # Gymnasium's own timeout would count the time in which the process was stopped.
            if self.timeout_s is not None:
                gymnasium_workers.wait_for_answers(env.parent_pipes, self.timeout_s)
            return getattr(env, f"{name}_wait")()
        except Exception as error:
            raise _to_fault(error, env, name) from error

    def _copy(self, observation: PyTree) -> PyTree:
        # With `copy=False` a vector environment writes every observation into the same memory.
        def copy(spec: jax.ShapeDtypeStruct, leaf: np.ndarray) -> np.ndarray:
            leaf = np.asarray(leaf)
            copied = np.array(leaf, spec.dtype)
            if leaf.dtype.kind in "iu" and leaf.dtype.itemsize > copied.itemsize:
                check_integers_fit(leaf, copied)
            return copied

        return jax.tree.map(copy, self.spec.observation, observation)


def _to_fault(error: Exception, vector_env: VectorEnv, name: str) -> EnvironmentFault:
    """Return the fault that names the failed environment; kill the worker processes, if any."""
    if not isinstance(vector_env, AsyncVectorEnv):
        return _fault_of(error, gymnasium_workers.describe_environment(error, vector_env), name)
    fault: EnvironmentFault
    if isinstance(error, multiprocessing.TimeoutError):
        where = gymnasium_workers.describe_unresponsive(vector_env)
        fault = EnvironmentTimeout(f"{where}: {error} (actor.env_timeout_s)")
    else:
        fault = _fault_of(error, gymnasium_workers.describe_worker(vector_env), name)
    gymnasium_workers.kill(vector_env)
    return fault


def _fault_of(error: Exception, where: str | None, name: str) -> EnvironmentFault:
    if isinstance(error, ResultError):
        what, _, expected = str(error).partition(": ")
        return EnvironmentDataError(f"{what} of {where or 'the environments'}: {expected}")
    is_described = isinstance(error, gymnasium_workers.WorkerError)
    raised = f"{name} raised {error if is_described else describe_error(error)}"
    return EnvironmentFault(raised if where is None else f"{where}: {raised}")


def _mode_of(options: dict[str, Any]) -> str:
    refuse_options(options, {"num_envs": "set actor.num_envs", "wrappers": "set env.wrappers"})
    mode = options.get("vectorization_mode", "sync")
    if mode not in _VECTORIZATION_MODES:
        raise ConfigError(
            f"env.options.vectorization_mode: there is no mode {mode!r}"
            f"{did_you_mean(str(mode), _VECTORIZATION_MODES)}"
        )
    if not isinstance(kwargs := options.get("vector_kwargs", {}), dict):
        raise ConfigError(f"env.options.vector_kwargs: expected a mapping, got {kwargs!r}")
    wanted = AutoresetMode.NEXT_STEP
    if (autoreset := kwargs.get("autoreset_mode", wanted)) not in (wanted, wanted.value):
        raise ConfigError(
            f"env.options.vector_kwargs.autoreset_mode: expected {wanted.value}, got {autoreset}"
        )
    check_step_limit(options.get("max_episode_steps"))
    return mode


def _check_wrapper(wrapper: Wrapper, mode: str) -> None:
    if mode == "vector_entry_point":
        raise ConfigError(
            "env.wrappers: expected none with env.options.vectorization_mode vector_entry_point,"
            f" whose environments are one batch, got {wrapper.name}. Set"
            " env.options.vectorization_mode to sync or async"
        )
    if isinstance(wrapper.function, type) and issubclass(wrapper.function, VectorWrapper):
        one = getattr(gymnasium.wrappers, wrapper.function.__name__, None)
        advice = f": gymnasium.wrappers:{one.__name__}" if one else ""
        raise wrapper.refusal(f"a wrapper of one environment{advice}", "a wrapper of a batch")


def _frame_stack(wrappers: Sequence[Wrapper]) -> FrameStack | None:
    """Return how the last wrapper stacks observations; None: it does not, or with other frames."""
    if not wrappers or wrappers[-1].function is not gymnasium.wrappers.FrameStackObservation:
        return None
    arguments = {"padding_type": "reset", **wrappers[-1].arguments}
    size, padding = arguments["stack_size"], arguments["padding_type"]
    if size == 1 or not isinstance(padding, str):
        return None
    return FrameStack(size=size, axis=0, fill="repeat" if padding == "reset" else "zeros")


def _make_vec(
    spec: EnvSpec,
    config: EnvConfig,
    mode: str,
    num_envs: int,
    wrappers: tuple[Wrapper, ...],
    purpose: Purpose,
    env_index: int,
) -> VectorEnv:
    """Create a vector environment of single ones, in this process or in one process each."""
    options = config.options
    own = {name: value for name, value in options.items() if name not in _VECTOR_OPTIONS}
    check_arguments(spec, own, name=config.id)
    of_vector = {"copy": False, **options.get("vector_kwargs", {})}
    factories = [
        EnvFactory(
            spec=spec,
            options=own,
            wrappers=wrappers,
            env_index=env_index + i,
            purpose=purpose,
            # Gymnasium makes one here to read its spaces before it starts the processes.
            inspecting_process=os.getpid() if mode == "async" else None,
        )
        for i in range(num_envs)
    ]
    vector_env: VectorEnv
    if mode == "sync":
        vector_env = SyncVectorEnv(factories, **of_vector)
    else:
        # A fork would copy the held locks of JAX's threads, and deadlock.
        of_vector = {"context": "spawn", "worker": gymnasium_workers.run_worker, **of_vector}
        with gymnasium_workers.starting_workers():
            vector_env = AsyncVectorEnv(factories, **of_vector)
    vector_env.spec = _with_options(spec, own)
    return vector_env


def _make_batch(
    spec: EnvSpec, options: dict[str, Any], num_envs: int, purpose: Purpose, env_index: int
) -> VectorEnv:
    """Create the environment's own vector environment."""
    if spec.vector_entry_point is None:
        raise ConfigError(
            "env.options.vectorization_mode: expected sync or async, since the environment has no"
            " vector environment of its own, got vector_entry_point"
        )
    identity = {"env_index": env_index, "purpose": purpose}
    options = asked_for(constructor(spec.vector_entry_point), identity) | options
    vector_env = gymnasium.make_vec(spec, num_envs, **options)
    own = {name: value for name, value in options.items() if name not in _VECTOR_OPTIONS}
    vector_env.unwrapped.spec = _with_options(spec, own)
    return vector_env


def _with_options(spec: EnvSpec, options: dict[str, Any]) -> EnvSpec:
    spec = copy.copy(spec)
    spec.kwargs = {**spec.kwargs, **options}
    return spec


@contextlib.contextmanager
def _refusals(config: EnvConfig) -> Iterator[None]:
    """Raise Gymnasium's refusals as a `ConfigError` that says what to change."""
    try:
        yield
    except gymnasium.error.UnregisteredEnv as error:
        raise ConfigError(f"env.id: {describe_unregistered(config.id)}") from error
    except gymnasium.error.Error as error:
        raise ConfigError(f"env.id {config.id!r}: {error}") from error
    except gymnasium_workers.WorkerError as error:
        raise EnvironmentFault(f"its constructor raised {error}") from error
    except (AttributeError, RuntimeError, TypeError) as error:
        text = str(error)
        if any(each in text for each in _DIFFERENT):
            differing = text.partition("single_")[2] or text
            raise ConfigError(
                f"env.id: expected equal spaces in every environment of {config.id}, got"
                f" {differing.partition('. If this')[0]}"
            ) from error
        if any(each in text for each in _REFUSALS):
            raise ConfigError(f"env.id {config.id!r}: {text.splitlines()[0]}") from error
        if "unexpected keyword argument" in text:
            raise ConfigError(
                f"env.options: {config.id!r} refuses {config.options}: {error}"
            ) from error
        raise


def _check_autoreset(config: EnvConfig, vector_env: VectorEnv) -> None:
    mode = vector_env.metadata.get("autoreset_mode")
    if mode != AutoresetMode.NEXT_STEP:
        raise ConfigError(
            f"env.id: expected {AutoresetMode.NEXT_STEP}, got autoreset_mode {mode} of"
            f" {config.id!r}; set env.options.vectorization_mode to sync or async"
        )
