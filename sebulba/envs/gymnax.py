"""gymnax: pure-JAX environments, batched by `jax_environment`.

Uses gymnax 1.0.1's `step_env` and `is_truncated`: no autoreset, and truncation apart from
termination.
"""

import colorsys
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from sebulba.config import EnvConfig
from sebulba.envs.deferred_imports import deferred
from sebulba.envs.jax_environment import JaxEnvironment, shared_task
from sebulba.envs.jax_wrappers import wrap
from sebulba.envs.wrappers import Wrapper
from sebulba.errors import ConfigError, did_you_mean
from sebulba.types import PyTree

with deferred("matplotlib.pyplot", "seaborn"):  # which some environments draw with
    import gymnax
    from gymnax.environments import spaces as gymnax_spaces


def make(
    config: EnvConfig, *, num_envs: int, seed: int, wrappers: Sequence[Wrapper] = ()
) -> JaxEnvironment:
    """Create `gymnax.make(env.id)`; `env.options` are fields of its parameters.

    Raises:
        ConfigError: gymnax has no such environment or parameter.
    """
    if config.id not in ids():
        raise ConfigError(f"env.id: gymnax has no {config.id!r}{did_you_mean(config.id, ids())}")
    environment, params = gymnax.make(config.id)
    valid = [field.name for field in dataclasses.fields(params)]
    for option in config.options:
        if option not in valid:
            raise ConfigError(
                f"env.options.{option}: {config.id!r} has no such parameter"
                f"{did_you_mean(option, valid)}"
            )
    task = shared_task(
        config,
        lambda: GymnaxTask(environment, dataclasses.replace(params, **config.options)),
    )
    return JaxEnvironment(wrap(task, wrappers), num_envs=num_envs, seed=seed)


def ids() -> list[str]:
    """Return the ids of gymnax's environments."""
    return list(gymnax.registered_envs)


class GymnaxTask:
    """A gymnax environment as a `sebulba.envs.jax_environment.JaxTask`."""

    def __init__(self, environment: Any, params: Any):
        self._environment = environment
        self._params = params
        key = jax.eval_shape(lambda: jax.random.key(0))
        self.observation = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype),
            jax.eval_shape(self.reset, key)[1],
        )
        self.action_space = _gymnasium_space(environment.action_space(params))

    def reset(self, key: jax.Array) -> tuple[PyTree, PyTree]:
        """Start an episode."""
        observation, state = self._environment.reset_env(key, self._params)
        return _as_arrays(state), _as_arrays(observation)

    @property
    def render(self) -> Callable[[PyTree], np.ndarray] | None:
        """A function that draws a state as uint8 `[H, W, 3]`; None unless it is seen as a grid."""
        shapes = [leaf.shape for leaf in jax.tree.leaves(self.observation)]
        return self._draw if len(shapes) == 1 and len(shapes[0]) in (2, 3) else None

    def step(
        self, state: PyTree, action: jax.Array, key: jax.Array
    ) -> tuple[PyTree, PyTree, jax.Array, jax.Array, jax.Array]:
        """Step without gymnax's autoreset, which would replace the final observation."""
        observation, next_state, reward, terminated, _ = self._environment.step_env(
            key, state, action, self._params
        )
        terminated = jnp.asarray(terminated, bool)
        truncated = jnp.asarray(self._environment.is_truncated(next_state, self._params), bool)
        # Some environments change a leaf's dtype, which `lax.scan` refuses.
        next_state = jax.tree.map(lambda new, old: new.astype(old.dtype), next_state, state)
        return (
            next_state,
            _as_arrays(observation),
            jnp.asarray(reward, jnp.float32),
            terminated,
            truncated & ~terminated,
        )

    def _draw(self, state: PyTree) -> np.ndarray:
        """Draw one pixel per cell, and each plane of the grid in a colour of its own."""
        grid = np.asarray(self._environment.get_obs(state, self._params))
        planes = grid.reshape(*grid.shape[:2], -1)
        frame = np.zeros((*planes.shape[:2], 3), np.uint8)
        for i in reversed(range(planes.shape[-1])):  # the first, usually the player, is on top
            colour = colorsys.hsv_to_rgb(i / planes.shape[-1], 0.7, 1.0)
            frame[planes[..., i] != 0] = np.uint8(255 * np.asarray(colour))
        return frame


def _as_arrays(tree: PyTree) -> PyTree:
    return jax.tree.map(jnp.asarray, tree)


def _gymnasium_space(space: Any) -> gymnasium.Space:
    if isinstance(space, gymnax_spaces.Discrete):
        return gymnasium.spaces.Discrete(int(space.n))
    if isinstance(space, gymnax_spaces.Box):
        dtype = np.dtype(space.dtype)
        low, high = (
            np.broadcast_to(np.asarray(bound, dtype), space.shape)
            for bound in (space.low, space.high)
        )
        return gymnasium.spaces.Box(low, high, dtype=dtype.type)
    if isinstance(space, gymnax_spaces.Dict):
        children = {name: _gymnasium_space(child) for name, child in space.spaces.items()}
        return gymnasium.spaces.Dict(children)
    if isinstance(space, gymnax_spaces.Tuple):
        return gymnasium.spaces.Tuple([_gymnasium_space(child) for child in space.spaces])
    raise ConfigError(
        f"env.id: expected actions of Discrete or Box, also in Dict and Tuple, got {space!r}; use"
        " another one"
    )
