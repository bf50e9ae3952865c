"""Craftax: Crafter and a longer game of that kind in JAX, batched by `jax_environment`.

Craftax's own time limit is a termination, so it is never reached, and episodes are truncated here.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from craftax.craftax_env import make_craftax_env_from_name

from sebulba.config import EnvConfig
from sebulba.envs.jax_environment import JaxEnvironment, shared_task, take_step_limit
from sebulba.envs.jax_tasks import TaskStep
from sebulba.envs.jax_wrappers import wrap
from sebulba.envs.lookup import refuse_options, refuse_unknown_options
from sebulba.envs.wrappers import Wrapper
from sebulba.errors import ConfigError, did_you_mean
from sebulba.types import PyTree

_NAMES = (
    "Craftax-Symbolic-v1",
    "Craftax-Pixels-v1",
    "Craftax-Classic-Symbolic-v1",
    "Craftax-Classic-Pixels-v1",
)
_NEVER = np.iinfo(np.int32).max


def make(
    config: EnvConfig, *, num_envs: int, seed: int, wrappers: Sequence[Wrapper] = ()
) -> JaxEnvironment:
    """Create the environment `env.id` without Craftax's autoreset.

    The options are fields of Craftax's parameters. `max_episode_steps` replaces `max_timesteps`,
    and is that limit by default.

    Raises:
        ConfigError: Craftax has no such environment or parameter.
    """
    if config.id not in ids():
        raise ConfigError(f"env.id: Craftax has no {config.id!r}{did_you_mean(config.id, ids())}")
    refuse_options(config.options, {"max_timesteps": "use max_episode_steps, which truncates"})
    environment = make_craftax_env_from_name(config.id, auto_reset=False)
    params = environment.default_params
    fields = [field.name for field in dataclasses.fields(params)]
    refuse_unknown_options(config, [*fields, "max_episode_steps"])
    options = dict(config.options)
    limit = take_step_limit(options) or params.max_timesteps
    params = params.replace(**options, max_timesteps=_NEVER)
    task = shared_task(config, lambda: CraftaxTask(environment, params))
    return JaxEnvironment(
        wrap(task, wrappers), num_envs=num_envs, seed=seed, max_episode_steps=limit
    )


def ids() -> list[str]:
    """Return the ids of Craftax's environments."""
    return list(_NAMES)


class CraftaxTask:
    """A Craftax environment as a `jax_environment.JaxTask`; images are float32 in [0, 1]."""

    def __init__(self, environment: Any, params: Any):
        self._environment = environment
        self._params = params
        key = jax.eval_shape(lambda: jax.random.key(0))
        _, observation = jax.eval_shape(self.reset, key)
        self.observation = jax.ShapeDtypeStruct(observation.shape, observation.dtype)
        self.action_space = gymnasium.spaces.Discrete(int(environment.num_actions))

    def reset(self, key: jax.Array) -> tuple[PyTree, jax.Array]:
        """Start an episode in a new world."""
        observation, state = self._environment.reset_env(key, self._params)
        return jax.tree.map(jnp.asarray, state), jnp.asarray(observation, jnp.float32)

    def step(self, state: PyTree, action: jax.Array, key: jax.Array) -> TaskStep:
        """Take one step."""
        observation, next_state, reward, terminated, _ = self._environment.step_env(
            key, state, action, self._params
        )
        # Some leaves change their dtype, which `lax.scan` refuses.
        next_state = jax.tree.map(lambda new, old: new.astype(old.dtype), next_state, state)
        return (
            next_state,
            jnp.asarray(observation, jnp.float32),
            jnp.asarray(reward, jnp.float32),
            jnp.asarray(terminated, bool),
            jnp.zeros((), bool),
        )
