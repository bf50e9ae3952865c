"""Jumanji: puzzles and planning problems in JAX, batched by `jax_environment`.

An observation of several fields becomes a dict of float32 arrays, one of a single field its array.
Integers with bounds, of 3 to 64 values, become one-hot vectors. The field `action_mask` becomes
`EnvStep.action_mask`, and `step_count` is left out, since a time limit truncates here. The
combinations of several choices are numbered row by row as one `Discrete`, up to 4,096 of them.
"""

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import jumanji
import numpy as np
from jumanji import specs

from sebulba.config import EnvConfig
from sebulba.envs.actions import agent_action_space, num_choices
from sebulba.envs.jax_environment import JaxEnvironment, shared_task, take_step_limit
from sebulba.envs.jax_tasks import TaskStep
from sebulba.envs.jax_wrappers import wrap
from sebulba.envs.lookup import first_line, refuse_options
from sebulba.envs.wrappers import Wrapper
from sebulba.errors import ConfigError, did_you_mean
from sebulba.pytree import pytree_dataclass
from sebulba.types import PyTree

_NOT_OBSERVED = ("action_mask", "step_count")
_MOST_CATEGORIES = 64  # of a one-hot vector
_MOST_ACTIONS = 4096


def make(
    config: EnvConfig, *, num_envs: int, seed: int, wrappers: Sequence[Wrapper] = ()
) -> JaxEnvironment:
    """Create `jumanji.make(env.id)`.

    The options are its arguments, with two exceptions. `generator` has the arguments of the
    environment's default generator: `{num_rows: 5, num_cols: 5}`. `max_episode_steps` replaces
    `time_limit`, which by itself would be a termination, and is that limit by default.

    Raises:
        ConfigError: Jumanji has no such environment or option, or the environment has several
            rewards, or masks of more than 4,096 combinations.
    """
    if config.id not in ids():
        raise ConfigError(f"env.id: Jumanji has no {config.id!r}{did_you_mean(config.id, ids())}")
    refuse_options(config.options, {"time_limit": "use max_episode_steps, which truncates"})
    options = dict(config.options)
    max_episode_steps = take_step_limit(options)
    try:
        if "generator" in options:
            default = jumanji.make(config.id).generator
            options["generator"] = type(default)(**options["generator"])
        environment = jumanji.make(config.id, **options)
        if hasattr(environment, "time_limit"):
            max_episode_steps = max_episode_steps or int(environment.time_limit)
            options["time_limit"] = max_episode_steps + 1  # never reached
            environment = jumanji.make(config.id, **options)
    except (AttributeError, TypeError, ValueError) as error:
        raise ConfigError(
            f"env.options: Jumanji does not create {config.id!r} with {dict(config.options)}:"
            f" {first_line(error)}"
        ) from error
    task: JumanjiTask = shared_task(config, lambda: JumanjiTask(environment))
    return JaxEnvironment(
        wrap(task, wrappers),
        num_envs=num_envs,
        seed=seed,
        max_episode_steps=max_episode_steps,
        combined_actions=task.combined_actions,
    )


def ids() -> list[str]:
    """Return the ids of Jumanji's environments."""
    return list(jumanji.registered_environments())


@pytree_dataclass
class JumanjiState:
    """Jumanji's own state, and the action mask of its latest observation."""

    inner: PyTree
    mask: PyTree  # [A] bool; None: Jumanji does not tell the legal actions


class JumanjiTask:
    """A Jumanji environment with one reward as a `sebulba.envs.jax_environment.JaxTask`.

    Raises:
        ConfigError: it has several rewards, or masks of too many combinations.
    """

    def __init__(self, environment: Any):
        self._environment = environment
        # Jumanji makes its specs at their first use, which must not be in a traced function.
        self._observation_spec = environment.observation_spec
        spec, reward_shape = environment.action_spec, environment.reward_spec.shape
        if reward_shape:
            raise ConfigError(
                f"env.id: expected one reward, got rewards of shape {reward_shape}; use another one"
            )
        self.action_space = _gymnasium_space(spec)
        agent_space = agent_action_space(self.action_space)
        is_discrete = not isinstance(agent_space, gymnasium.spaces.Box)
        self._sizes = num_choices(agent_space) if is_discrete else []
        self.combined_actions = is_discrete and math.prod(self._sizes) <= _MOST_ACTIONS
        key = jax.eval_shape(lambda: jax.random.key(0))
        state, self.observation = jax.eval_shape(self.reset, key)
        self._has_mask = state.mask is not None

    @property
    def action_mask(self) -> Callable[[JumanjiState], PyTree] | None:
        """A function that returns the mask of a state, if there are masks."""
        return (lambda state: state.mask) if self._has_mask else None

    def reset(self, key: jax.Array) -> tuple[JumanjiState, PyTree]:
        """Start an episode."""
        state, time_step = self._environment.reset(key)
        return self._state(state, time_step.observation), self._encode(time_step.observation)

    def step(self, state: JumanjiState, action: jax.Array, key: jax.Array) -> TaskStep:
        """Take one step; Jumanji's own randomness is in its state."""
        del key
        inner, time_step = self._environment.step(state.inner, action)
        next_state = self._state(inner, time_step.observation)
        next_state = jax.tree.map(lambda new, old: new.astype(old.dtype), next_state, state)
        reward = jnp.asarray(time_step.reward, jnp.float32)
        terminated = time_step.last() & (time_step.discount == 0.0)
        truncated = time_step.last() & ~terminated
        return next_state, self._encode(time_step.observation), reward, terminated, truncated

    def _state(self, inner: PyTree, observation: Any) -> JumanjiState:
        mask = getattr(observation, "action_mask", None)
        if mask is not None:
            has_rows = mask.size == sum(self._sizes)  # one for each component
            is_joint = self.combined_actions and mask.size == math.prod(self._sizes)
            if not has_rows and not is_joint:
                raise ConfigError(
                    f"env.id: expected a mask of {sum(self._sizes)} choices, or of at most"
                    f" {_MOST_ACTIONS} combinations, got {mask.shape} for actions of"
                    f" {self.action_space}; choose smaller actions with env.options"
                )
            if has_rows and self.combined_actions and len(self._sizes) > 1:
                mask = functools.reduce(lambda joint, row: joint[..., None] & row, mask)
            mask = jnp.asarray(mask, bool).ravel()
        return JumanjiState(inner=jax.tree.map(jnp.asarray, inner), mask=mask)

    def _encode(self, observation: Any) -> PyTree:
        leaves = dict(_leaves(self._observation_spec, observation))
        return leaves if len(leaves) > 1 else next(iter(leaves.values()))


def _gymnasium_space(spec: Any) -> gymnasium.Space:
    """Return the space of Jumanji's actions: choices, or numbers with bounds."""
    if hasattr(spec, "num_values"):
        sizes = np.asarray(spec.num_values)
        return (
            gymnasium.spaces.MultiDiscrete(sizes, dtype=spec.dtype)
            if sizes.shape
            else gymnasium.spaces.Discrete(int(sizes), dtype=spec.dtype)
        )
    low, high = (np.broadcast_to(bound, spec.shape) for bound in (spec.minimum, spec.maximum))
    return gymnasium.spaces.Box(low, high, dtype=spec.dtype)


def _leaves(spec: Any, value: Any, prefix: str = "") -> Iterator[tuple[str, jax.Array]]:
    """Yield what an agent sees of an observation, by the names of its fields."""
    names = getattr(value, "_fields", None) or getattr(value, "__dataclass_fields__", None)
    if names is None:
        yield prefix or "observation", _one_hot_or_float(spec, jnp.asarray(value))
        return
    for name in names:
        if name not in _NOT_OBSERVED:
            path = f"{prefix}.{name}" if prefix else name
            yield from _leaves(spec[name], getattr(value, name), path)


def _one_hot_or_float(spec: Any, value: jax.Array) -> jax.Array:
    if isinstance(spec, specs.BoundedArray) and jnp.issubdtype(value.dtype, jnp.integer):
        least, most = int(np.asarray(spec.minimum).min()), int(np.asarray(spec.maximum).max())
        if 2 <= most - least < _MOST_CATEGORIES:
            return jax.nn.one_hot(value.astype(jnp.int32) - least, most - least + 1)
    return value.astype(jnp.float32)
