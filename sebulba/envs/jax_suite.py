"""Environments written in JAX: a pure task for one environment, batched and reset here."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Protocol

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from sebulba.config import EnvConfig
from sebulba.config.plugins import load
from sebulba.envs import spaces
from sebulba.envs.base import FusedEnvironment
from sebulba.errors import ConfigError, did_you_mean
from sebulba.pytree import pytree_dataclass
from sebulba.types import EnvironmentSpec, EnvStep, PyTree

TASKS: dict[str, str] = {
    "Catch-v0": "sebulba.envs.jax_tasks:Catch",
    "Recall-v0": "sebulba.envs.jax_tasks:Recall",
    "Room-v0": "sebulba.envs.jax_rooms:Room",
    "Bandit-v0": "sebulba.envs.jax_tasks:Bandit",
    "ContinuousBandit-v0": "sebulba.envs.jax_tasks:ContinuousBandit",
}
"""Dataclasses that are a `JaxTask`, as `module:Name`, by the name of the environment."""


class JaxTask(Protocol):
    """One environment as pure functions, without batch or autoreset. Keys are consumed by it.

    The task's state is any pytree of arrays whose shapes and dtypes never change.
    """

    observation: PyTree  # of jax.ShapeDtypeStruct
    action_space: gymnasium.Space  # Discrete, MultiDiscrete or Box

    def reset(self, key: jax.Array) -> tuple[PyTree, PyTree]:
        """Starts an episode: returns the state and the first observation."""
        ...

    def step(
        self, state: PyTree, action: jax.Array, key: jax.Array
    ) -> tuple[PyTree, PyTree, jax.Array, jax.Array, jax.Array]:
        """Returns the state, observation, reward (float32 `[]`), terminated and truncated (bool).

        Args:
            state: of an episode that has not ended.
            action: one action of the task's own action space, as int32 or float32.
            key: for this step alone.
        """
        ...


@pytree_dataclass
class JaxEnvState:
    """`B` environments between two steps."""

    task_state: PyTree  # [B, ...]
    key: jax.Array  # [B] keys
    elapsed: jax.Array  # [B] int32, steps of the episode so far
    done: jax.Array  # [B] bool, of the latest row


def make(config: EnvConfig, *, num_envs: int, seed: int) -> "JaxEnvironment":
    """Makes the task that `env.id` names, of `TASKS` or `module:Name`, with `env.options`.

    Of the options, `max_episode_steps` truncates episodes; all others go to the task.

    Raises:
        ConfigError: there is no such task or option.
    """
    options = dict(config.options)
    max_episode_steps = options.pop("max_episode_steps", None)
    if max_episode_steps is not None and (
        not isinstance(max_episode_steps, int) or max_episode_steps < 1
    ):
        raise ConfigError(
            f"env.options.max_episode_steps: expected at least 1, got {max_episode_steps!r}"
        )
    task = _make_task(config.id, options)
    return JaxEnvironment(task, num_envs=num_envs, seed=seed, max_episode_steps=max_episode_steps)


def ids() -> list[str]:
    """Returns the names of the tasks that come with this package."""
    return list(TASKS)


class JaxEnvironment:
    """`B` copies of a `JaxTask` as an `Environment`; stepped and fused run the same function."""

    def __init__(
        self, task: JaxTask, *, num_envs: int, seed: int, max_episode_steps: int | None = None
    ):
        self.num_envs = num_envs
        self.spec = EnvironmentSpec(
            observation=task.observation,
            action_space=spaces.agent_action_space(task.action_space),
            native_action_space=task.action_space,
        )
        self._task = task
        self._max_episode_steps = max_episode_steps
        _check_task(task, self.spec)
        keys = functools.partial(jax.random.fold_in, jax.random.key(seed))
        self._keys = jax.vmap(keys)(jnp.arange(num_envs))
        self._reset = jax.jit(jax.vmap(functools.partial(_reset_one, task)))
        to_environment = spaces.action_scaling(task.action_space)
        step = jax.vmap(functools.partial(_step_one, task, max_episode_steps))
        self._step_batch = lambda state, action: step(state, to_environment(action))
        self._step = jax.jit(self._step_batch)
        self.whole_state: JaxEnvState | None = None

    def reset(self) -> EnvStep:
        """Starts all episodes; see `Environment.reset`."""
        self.whole_state, env_step = self._reset(self._keys)
        return jax.tree.map(np.array, env_step)

    def step(self, action: np.ndarray) -> EnvStep:
        """Steps all environments; see `Environment.step`."""
        spaces.check_action(action, self.spec.action_space, self.num_envs)
        self.whole_state, env_step = self._step(self.whole_state, action)
        return jax.tree.map(np.array, env_step)

    def fused(self) -> FusedEnvironment:
        """Returns the traceable step, which cannot check an action's range."""
        if self.whole_state is None:
            raise RuntimeError("expected reset() before fused()")

        def step(state: JaxEnvState, action: jax.Array) -> tuple[JaxEnvState, EnvStep]:
            spaces.check_action_structure(action, self.spec.action_space, self.num_envs)
            return self._step_batch(state, action)

        def restart(state: JaxEnvState) -> tuple[JaxEnvState, EnvStep]:
            return self._reset(state.key)

        return FusedEnvironment(
            state=self.whole_state, step=step, is_whole_state=True, restart=restart
        )

    def restart(self) -> EnvStep:
        """Begins an episode in every environment, by the keys that they have come to."""
        if self.whole_state is None:
            raise RuntimeError("expected reset() before restart()")
        self.whole_state, env_step = self._reset(self.whole_state.key)
        return jax.tree.map(np.array, env_step)

    def settings(self) -> dict[str, Any]:
        """Returns the task's options, defaults included."""
        options: dict[str, Any] = vars(self._task) if dataclasses.is_dataclass(self._task) else {}
        return {**options, "max_episode_steps": self._max_episode_steps}

    def render(self) -> np.ndarray:
        """Returns the first environment's picture.

        Raises:
            ConfigError: the task draws none.
        """
        if self.whole_state is None:
            raise RuntimeError("expected reset() before render()")
        render = getattr(self._task, "render", None)
        if render is None:
            raise ConfigError(
                f"env.id: {type(self._task).__name__} has no picture: expected a method"
                " `render(task_state) -> uint8 [H, W, 3]`"
            )
        state = jax.tree.map(lambda leaf: leaf[0], self.whole_state.task_state)
        return np.asarray(render(state))

    def close(self) -> None:
        """Does nothing: there is nothing to release."""


def _reset_one(task: JaxTask, key: jax.Array) -> tuple[JaxEnvState, EnvStep]:
    key, reset_key = jax.random.split(key)
    task_state, observation = task.reset(reset_key)
    no = jnp.zeros((), bool)
    state = JaxEnvState(task_state=task_state, key=key, elapsed=jnp.zeros((), jnp.int32), done=no)
    env_step = EnvStep(
        observation=observation,
        reward=jnp.zeros((), jnp.float32),
        terminated=no,
        truncated=no,
        is_first=jnp.ones((), bool),
    )
    return state, env_step


def _step_one(
    task: JaxTask, max_episode_steps: int | None, state: JaxEnvState, action: jax.Array
) -> tuple[JaxEnvState, EnvStep]:
    reset_state, reset_step = _reset_one(task, state.key)
    _, step_key = jax.random.split(state.key)
    task_state, observation, reward, terminated, truncated = task.step(
        state.task_state, action, step_key
    )
    elapsed = state.elapsed + 1
    if max_episode_steps is not None:
        truncated = (truncated | (elapsed >= max_episode_steps)) & ~terminated
    next_state = JaxEnvState(
        task_state=task_state, key=reset_state.key, elapsed=elapsed, done=terminated | truncated
    )
    next_step = EnvStep(
        observation=observation,
        reward=reward,
        terminated=terminated,
        truncated=truncated,
        is_first=jnp.zeros((), bool),
    )

    def choose(if_done: jax.Array, otherwise: jax.Array) -> jax.Array:
        return jnp.where(state.done, if_done, otherwise)

    return jax.tree.map(choose, (reset_state, reset_step), (next_state, next_step))


def _make_task(name: str, options: dict[str, Any]) -> JaxTask:
    if name not in TASKS and ":" not in name:
        raise ConfigError(
            f"env.id: unknown JAX task {name!r}{did_you_mean(name, TASKS)}. For a task of your own,"
            " write module:Name"
        )
    factory: Callable[..., JaxTask] = load(TASKS.get(name, name), key="env.id")
    if dataclasses.is_dataclass(factory):
        valid = [field.name for field in dataclasses.fields(factory) if field.init]
        for option in options:
            if option not in valid:
                raise ConfigError(
                    f"env.options.{option}: {name!r} has no such option"
                    f"{did_you_mean(option, [*valid, 'max_episode_steps'])}"
                )
    return factory(**options)


def _check_task(task: JaxTask, spec: EnvironmentSpec) -> None:
    """Raises unless `reset` and `step` give what the task declares, by tracing them."""
    key = jax.eval_shape(lambda: jax.random.key(0))
    action = jax.ShapeDtypeStruct(spec.action_space.shape, spec.action_space.dtype)
    state, first = jax.eval_shape(task.reset, key)
    next_state, observation, *rest = jax.eval_shape(task.step, state, action, key)
    flag = jax.ShapeDtypeStruct((), np.bool_)
    scalars = [jax.ShapeDtypeStruct((), np.float32), flag, flag]
    for what, got, expected in (
        ("reset's observation", first, spec.observation),
        ("step's observation", observation, spec.observation),
        ("step's state", next_state, state),
        ("step's [reward, terminated, truncated]", rest, scalars),
    ):
        if not _same(got, expected):
            raise ConfigError(
                f"env.id: {type(task).__name__}: expected {what} to be {expected}, got {got}"
            )


def _same(got: PyTree, expected: PyTree) -> bool:
    structures: list[Any] = [jax.tree.structure(tree) for tree in (got, expected)]
    if structures[0] != structures[1]:
        return False
    same = jax.tree.map(lambda a, b: a.shape == b.shape and a.dtype == b.dtype, got, expected)
    return all(jax.tree.leaves(same))
