"""A JAX task, pure functions of one environment, as a batch of environments with autoreset.

A task may have several players that act at the same time. Each is then a row of the batch, and the
rows of an environment's players follow each other.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Protocol

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from sebulba.config import EnvConfig
from sebulba.envs import spaces
from sebulba.envs.actions import agent_action_space, to_native
from sebulba.envs.base import FusedEnvironment, TraceableStep
from sebulba.envs.final_rows import repeated, where_row
from sebulba.envs.jax_checks import check_task
from sebulba.envs.lookup import check_step_limit
from sebulba.errors import ConfigError
from sebulba.pytree import pytree_dataclass
from sebulba.types import EnvironmentSpec, EnvStep, PyTree

TASK_MEMBERS = ("observation", "action_space", "reset", "step")
"""What every JAX task has."""

IN_TURNS = "is_opponents_turn"
"""The method that only a game in turns has, see `JaxTask`."""


class JaxTask(Protocol):
    """One environment as pure functions, without batch axis or autoreset. It consumes its keys.

    Its state is any pytree of arrays with fixed shapes and dtypes. Optional methods are
    `action_mask(state) -> bool [A]`, see `EnvStep.action_mask`, and `render(state) -> uint8 [H, W,
    3]`. A task whose observations are stacks may say so with a property `frame_stack` of its class,
    see `EnvironmentSpec`.

    Of several players, the optional attribute `num_players` says how many there are, `P`.
    `observation` and `action_space` are then those of one player, and all that methods take and
    return of players has the leading axis `P`. A player that is out may be terminated or truncated
    before the others. What the task later says of that player is ignored, its rewards too, and its
    action is 0. An episode ends when all players are out.

    A game of two players in turns has a method `is_opponents_turn(state) -> bool []`. Then a step
    is one move of whoever is to move, who sees the observation and the action mask. The reward is
    the player's, and the opponent's is its negative. `reset` draws which of the two begins. The
    player has to have a turn before the game ends. A `step` that truncates the game has to show
    what the player sees, of which the value is learned.
    """

    observation: PyTree  # of jax.ShapeDtypeStruct
    action_space: gymnasium.Space  # see `sebulba.envs.actions`

    def reset(self, key: jax.Array) -> tuple[PyTree, PyTree]:
        """Return the state and first observation of a new episode."""
        ...

    def step(
        self, state: PyTree, action: jax.Array, key: jax.Array
    ) -> tuple[PyTree, PyTree, jax.Array, jax.Array, jax.Array]:
        """Return the state, observation, reward (float32 `[]`), terminated and truncated (bool).

        Args:
            state: the state of an episode that has not ended.
            action: one action of the task's `action_space`, with 32 bits instead of 64.
            key: a fresh key for this step.
        """
        ...


@pytree_dataclass
class JaxEnvState:
    """The complete state of `N` environments."""

    task_state: PyTree  # [N, ...]
    key: jax.Array  # [N] keys
    elapsed: jax.Array  # [N] int32, steps in the current episode; of a game in turns, the player's
    done: jax.Array  # [N] bool, at the latest row, of all players
    # [N, P, ...], what repeats the latest row: reward 0. None: the task has no axis of players.
    row: EnvStep | None = None


def take_step_limit(options: dict[str, Any]) -> int | None:
    """Take the option `max_episode_steps` out of `options`; None: no limit.

    Raises:
        ConfigError: it is no positive int.
    """
    limit = options.pop("max_episode_steps", None)
    check_step_limit(limit)
    return limit


class _BatchedTask:
    """The spec of a task, and its functions for a batch.

    `reset` takes keys `[N]`, `step` and `step_jitted` take a state and actions `[B, ...]`.
    """

    def __init__(self, task: JaxTask, max_episode_steps: int | None, combined_actions: bool):
        action_space = agent_action_space(task.action_space, combined=combined_actions)
        mask = None
        if action_mask_of(task) is not None:
            mask = spaces.action_mask_spec(action_space)
        self.spec = spec = EnvironmentSpec(
            observation=spaces.narrowed(task.observation),
            action_space=action_space,
            native_action_space=task.action_space,
            action_mask=mask,
            # A wrapper that forwards all attributes may show something else than the stacks inside.
            frame_stack=getattr(task, "frame_stack", None)
            if "frame_stack" in vars(type(task))
            else None,
            num_players=num_players_of(task) or 1,
        )
        convert = to_native(spec)
        players = () if num_players_of(task) is None else (spec.num_players,)
        check_task(task, spec, convert, players=players)
        step_all = jax.vmap(functools.partial(_step_one, task, action_space, max_episode_steps))

        def step(state: JaxEnvState, action: jax.Array) -> tuple[JaxEnvState, EnvStep]:
            """Step inside another jitted function; cannot check an action's range."""
            num_envs = len(state.done)
            spaces.check_action_structure(action, action_space, num_envs * spec.num_players)
            if state.row is None:
                return step_all(state, convert(action))
            is_out = _as_rows(state.row.done)
            action = convert(where_row(is_out, jnp.zeros_like(action), action))
            state, env_step = step_all(state, _by_player(action, num_envs, *players))
            return state, _as_rows(env_step)

        def reset(keys: jax.Array) -> tuple[JaxEnvState, EnvStep]:
            state, env_step = reset_all(keys)
            return state, env_step if state.row is None else _as_rows(env_step)

        reset_all = jax.vmap(functools.partial(_reset_one, task, action_space))
        self.step = step
        self.step_jitted = jax.jit(step)
        self.reset = jax.jit(reset)


def num_players_of(task: Any) -> int | None:
    """Return how many players a task has; None: it has one, without an axis of players."""
    return getattr(task, "num_players", None)


def _as_rows(tree: PyTree) -> PyTree:
    """Return `[N · P, ...]` for `[N, P, ...]`."""
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), tree)


def _by_player(tree: PyTree, num_envs: int, num_players: int) -> PyTree:
    """Return `[N, P, ...]` for `[N · P, ...]`."""
    return jax.tree.map(lambda leaf: leaf.reshape(num_envs, num_players, *leaf.shape[1:]), tree)


def _batch(task: Any, max_episode_steps: int | None, combined_actions: bool) -> _BatchedTask:
    """Return the functions of a task; equal tasks, such as those of a run's actors, share them.

    Then JAX traces and compiles them once.
    """
    try:
        hash(task)
    except TypeError:
        return _BatchedTask(task, max_episode_steps, combined_actions)
    return _shared_batch(task, max_episode_steps, combined_actions, repr(task))


_SHARED_TASKS: dict[str, Any] = {}  # the newest few, by what they are made from
_MOST_SHARED_TASKS = 8


def shared_task(config: EnvConfig, make_task: Callable[[], Any]) -> Any:
    """Return a library's task, the same object for the same suite, ID and options.

    Environments with the same task share their functions, see `_batch`; the tasks of most libraries
    are equal to no other.

    Args:
        config: what the task is made from; its wrappers are not part of the task.
        make_task: makes the task.
    """
    made_from = f"{config.suite} {config.id} {sorted(config.options.items())}"
    if made_from not in _SHARED_TASKS:
        task = make_task()
        if len(_SHARED_TASKS) == _MOST_SHARED_TASKS:
            del _SHARED_TASKS[next(iter(_SHARED_TASKS))]
        _SHARED_TASKS[made_from] = task
    return _SHARED_TASKS[made_from]


@functools.lru_cache(maxsize=8)
def _shared_batch(
    task: JaxTask, max_episode_steps: int | None, combined_actions: bool, text: str
) -> _BatchedTask:
    """Return the functions of a task; `text` tells 1 from 1.0, which are equal.

    The latest few tasks are kept alive, also those that no environment has any more.
    """
    del text
    return _BatchedTask(task, max_episode_steps, combined_actions)


class JaxEnvironment:
    """`N` copies of a `JaxTask` as an `Environment`; `step` and `fused` use the same function."""

    def __init__(
        self,
        task: JaxTask,
        *,
        num_envs: int,
        seed: int,
        max_episode_steps: int | None = None,
        combined_actions: bool = False,
    ):
        """Make the functions of the task.

        Args:
            task: one environment.
            num_envs: `N`, which is `B` if the task has one player.
            seed: of all environments.
            max_episode_steps: after which episodes are truncated; None: no limit.
            combined_actions: whether agents see all combinations of its choices as one Discrete.

        Raises:
            ConfigError: a method of the task returns something else than the task declares.
        """
        self.num_envs = num_envs
        self._task = task
        self._max_episode_steps = max_episode_steps
        self._batch = _batch(task, max_episode_steps, combined_actions)
        self.spec = self._batch.spec
        keys = functools.partial(jax.random.fold_in, jax.random.key(seed))
        self._keys = jax.vmap(keys)(jnp.arange(num_envs))
        self.whole_state: JaxEnvState | None = None

    def reset(self) -> EnvStep:
        """Start all episodes; see `Environment.reset`."""
        self.whole_state, env_step = self._batch.reset(self._keys)
        return jax.tree.map(np.array, env_step)

    def step(self, action: np.ndarray) -> EnvStep:
        """Step all environments; see `Environment.step`."""
        num_rows = self.num_envs * self.spec.num_players
        spaces.check_action(action, self.spec.action_space, num_rows)
        self.whole_state, env_step = self._batch.step_jitted(self.whole_state, action)
        return jax.tree.map(np.array, env_step)

    @property
    def traceable_step(self) -> TraceableStep:
        """The step of `fused`; that of an equal task is the same object."""
        return self._batch.step

    def fused(self) -> FusedEnvironment:
        """Return the traceable step, which cannot check an action's range."""
        if self.whole_state is None:
            raise RuntimeError("expected reset() before fused()")
        reset = self._batch.reset
        return FusedEnvironment(
            state=self.whole_state,
            step=self._batch.step,
            is_whole_state=True,
            restart=lambda state: reset(state.key),
        )

    def restart(self) -> EnvStep:
        """Start a new episode in every environment, drawn from its current key."""
        if self.whole_state is None:
            raise RuntimeError("expected reset() before restart()")
        self.whole_state, env_step = self._batch.reset(self.whole_state.key)
        return jax.tree.map(np.array, env_step)

    def settings(self) -> dict[str, Any]:
        """Return the task's options, defaults included."""
        return {**_options_of(self._task), "max_episode_steps": self._max_episode_steps}

    def render(self) -> np.ndarray:
        """Return the first environment's frame.

        Raises:
            ConfigError: the task has no `render` method.
        """
        if self.whole_state is None:
            raise RuntimeError("expected reset() before render()")
        render = getattr(self._task, "render", None)
        if render is None:
            raise ConfigError(
                f"env.id: {type(self._task).__name__} cannot be rendered; add a method"
                " `render(task_state) -> uint8 [H, W, 3]`"
            )
        state = jax.tree.map(lambda leaf: leaf[0], self.whole_state.task_state)
        return np.asarray(render(state))

    def close(self) -> None:
        """Do nothing: there are no resources to release."""


def _reset_one(
    task: JaxTask, action_space: gymnasium.Space, key: jax.Array
) -> tuple[JaxEnvState, EnvStep]:
    key, reset_key = jax.random.split(key)
    task_state, observation = task.reset(reset_key)
    task_state = jax.tree.map(_strongly_typed, task_state)
    num_players = num_players_of(task)
    false = jnp.zeros(() if num_players is None else num_players, bool)
    env_step = EnvStep(
        observation=spaces.narrowed(observation),
        reward=jnp.zeros(false.shape, jnp.float32),
        terminated=false,
        truncated=false,
        is_first=~false,
        action_mask=_legal_actions(task, action_space, task_state),
    )
    state = JaxEnvState(
        task_state=task_state,
        key=key,
        elapsed=jnp.zeros((), jnp.int32),
        done=jnp.zeros((), bool),
        row=None if num_players is None else repeated(env_step),
    )
    return state, env_step


def _step_one(
    task: JaxTask,
    action_space: gymnasium.Space,
    max_episode_steps: int | None,
    state: JaxEnvState,
    action: PyTree,
) -> tuple[JaxEnvState, EnvStep]:
    # Under `vmap` a branch costs as much as both sides: compute reset and step, then choose. Both
    # advance the key in the same way, so an episode's length does not change later random draws.
    reset_state, reset_step = _reset_one(task, action_space, state.key)
    _, step_key = jax.random.split(state.key)
    task_state, observation, reward, terminated, truncated = task.step(
        state.task_state, action, step_key
    )
    elapsed = state.elapsed + 1
    if max_episode_steps is not None:
        truncated = truncated | (elapsed >= max_episode_steps)
    next_step = EnvStep(
        observation=spaces.narrowed(observation),
        reward=spaces.narrowed(reward),
        terminated=terminated,
        truncated=truncated & ~terminated,
        is_first=jnp.zeros(terminated.shape, bool),
        action_mask=_legal_actions(task, action_space, task_state),
    )
    if state.row is not None:
        next_step = where_row(state.row.done, state.row, next_step)
    next_state = JaxEnvState(
        task_state=task_state,
        key=reset_state.key,
        elapsed=elapsed,
        done=next_step.done if state.row is None else jnp.all(next_step.done),
        row=None if state.row is None else repeated(next_step),
    )

    def choose(if_done: jax.Array, otherwise: jax.Array) -> jax.Array:
        return jnp.where(state.done, if_done, otherwise)

    return jax.tree.map(choose, (reset_state, reset_step), (next_state, next_step))


def _strongly_typed(leaf: Any) -> jax.Array:
    """Return a leaf as an array whose type is not weak; that of a Python number is.

    The first cycle would return it with a strong type, and the second would be compiled again.
    """
    return jnp.asarray(leaf, jnp.asarray(leaf).dtype)


def action_mask_of(task: JaxTask) -> Callable[[PyTree], jax.Array] | None:
    return getattr(task, "action_mask", None)


def _legal_actions(task: JaxTask, action_space: gymnasium.Space, state: PyTree) -> jax.Array | None:
    action_mask = action_mask_of(task)
    if action_mask is None:
        return None
    return spaces.complete_mask(action_mask(state), action_space)


def _options_of(task: Any) -> dict[str, Any]:
    """Return the fields of a task and of the tasks inside it, which wrappers have as `task`."""
    if not dataclasses.is_dataclass(task):
        return {}
    options = dict(vars(task))
    return {**_options_of(options.pop("task", None)), **options}
