"""MuJoCo Playground: robots in MJX, MuJoCo's physics in JAX, batched by `jax_environment`.

Its training wrapper replaces final observations, so it is not used. Of observations with a part
that only critics may see, agents see `state`.
"""

import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
from mujoco_playground import registry

from sebulba.config import EnvConfig
from sebulba.envs.jax_environment import JaxEnvironment, shared_task, take_step_limit
from sebulba.envs.jax_tasks import TaskStep
from sebulba.envs.jax_wrappers import wrap
from sebulba.envs.lookup import first_line
from sebulba.envs.wrappers import Wrapper
from sebulba.errors import ConfigError, did_you_mean
from sebulba.types import PyTree


def make(
    config: EnvConfig, *, num_envs: int, seed: int, wrappers: Sequence[Wrapper] = ()
) -> JaxEnvironment:
    """Create `registry.load(env.id)`; the options are keys of its config, such as `ctrl_dt`.

    `max_episode_steps` is the config's `episode_length` by default. `impl` is `jax` by default,
    which runs on every device; `warp` is for NVIDIA's.

    Raises:
        ConfigError: Playground has no such environment or option.
    """
    if config.id not in ids():
        known = did_you_mean(config.id, ids())
        raise ConfigError(f"env.id: MuJoCo Playground has no {config.id!r}{known}")
    options = dict(config.options)
    defaults = registry.get_default_config(config.id)
    limit = take_step_limit(options) or int(defaults.episode_length)
    if "impl" in defaults:
        options = {"impl": "jax"} | options
    try:
        environment = registry.load(config.id, config_overrides=options)
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"env.options: MuJoCo Playground does not create {config.id!r} with"
            f" {dict(config.options)}: {first_line(error)}"
        ) from error
    except subprocess.CalledProcessError as error:
        raise ConfigError(
            f"env.id: MuJoCo Playground downloads the models of {config.id!r} with git at first"
            f" use, which failed: {first_line(error)}"
        ) from error
    task = wrap(shared_task(config, lambda: PlaygroundTask(environment)), wrappers)
    return JaxEnvironment(task, num_envs=num_envs, seed=seed, max_episode_steps=limit)


def ids() -> list[str]:
    """Return the ids of Playground's environments."""
    return list(registry.ALL_ENVS)


class PlaygroundTask:
    """A Playground environment as a `sebulba.envs.jax_environment.JaxTask`."""

    def __init__(self, environment: Any):
        self._environment = environment
        key = jax.eval_shape(lambda: jax.random.key(0))
        _, observation = jax.eval_shape(self.reset, key)
        self.observation = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), observation
        )
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (int(environment.action_size),))

    def reset(self, key: jax.Array) -> tuple[PyTree, PyTree]:
        """Start an episode."""
        state = self._environment.reset(jax.random.key_data(key))
        return jax.tree.map(jnp.asarray, state), _observed(state.obs)

    def step(self, state: Any, action: jax.Array, key: jax.Array) -> TaskStep:
        """Take one step; Playground's own randomness is in its state."""
        del key
        next_state = self._environment.step(state, action)
        # Some leaves change their dtype, which `lax.scan` refuses.
        next_state = jax.tree.map(
            lambda new, old: jnp.asarray(new).astype(old.dtype), next_state, state
        )
        return (
            next_state,
            _observed(next_state.obs),
            jnp.asarray(next_state.reward, jnp.float32),
            next_state.done > 0.5,
            jnp.zeros((), bool),
        )


def _observed(observation: PyTree) -> PyTree:
    if isinstance(observation, Mapping) and "state" in observation:
        return observation["state"]
    return observation
