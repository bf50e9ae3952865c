"""What an environment's spaces are to the agent: 32-bit dtypes, masks, and checks of actions.

`sebulba.envs.actions` converts actions.
"""

from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from sebulba.envs.actions import NARROWED, agent_action_space, num_choices
from sebulba.envs.base import ActionError
from sebulba.errors import ConfigError
from sebulba.types import Array, EnvironmentSpec, PyTree

_ARRAY_SPACES = (
    gymnasium.spaces.Box,
    gymnasium.spaces.Discrete,
    gymnasium.spaces.MultiDiscrete,
    gymnasium.spaces.MultiBinary,
)


def observation_spec(space: gymnasium.Space, path: str = "observation") -> PyTree:
    """Return one observation's `jax.ShapeDtypeStruct`s; `Dict` and `Tuple` become pytrees.

    Args:
        space: of one environment.
        path: names the space in errors.

    Raises:
        ConfigError: a leaf is not an array of a fixed shape.
    """
    if isinstance(space, gymnasium.spaces.Dict):
        return {name: observation_spec(child, f"{path}.{name}") for name, child in space.items()}
    if isinstance(space, gymnasium.spaces.Tuple):
        return tuple(observation_spec(child, f"{path}[{i}]") for i, child in enumerate(space))
    if isinstance(space, _ARRAY_SPACES):
        return jax.ShapeDtypeStruct(space.shape, _narrow(space.dtype))
    raise ConfigError(
        "env.id: expected observations of Box, Discrete, MultiDiscrete or MultiBinary, also in Dict"
        f" and Tuple, got {type(space).__name__} in {path}. Set env.wrappers to one that leaves it"
        " out or makes an array of it"
    )


def narrowed(tree: PyTree) -> PyTree:
    """Return arrays, or their shapes or spaces as shapes, with 32-bit types for 64-bit ones.

    A task in JAX has 64-bit types where JAX_ENABLE_X64 is set, or declares them with NumPy's dtypes
    or with a space.
    """

    def narrow(leaf: Any) -> PyTree:
        if isinstance(leaf, gymnasium.Space):
            return observation_spec(leaf)
        if isinstance(leaf, jax.ShapeDtypeStruct):
            return jax.ShapeDtypeStruct(leaf.shape, _narrow(leaf.dtype))
        dtype = jnp.result_type(leaf)
        return jnp.asarray(leaf, NARROWED[dtype]) if dtype in NARROWED else leaf

    return jax.tree.map(narrow, tree)


def observation_choices(space: gymnasium.Space) -> list[tuple[range, ...]]:
    """Return the values of each component of each leaf of `observation_spec`.

    They are those of a `Discrete` or `MultiDiscrete` space; of another space there are none.
    """
    match space:
        case gymnasium.spaces.Dict():  # Leaves of a dict are in the order of its sorted keys.
            children = [child for _, child in sorted(space.items())]
            return [each for child in children for each in observation_choices(child)]
        case gymnasium.spaces.Tuple():
            return [each for child in space for each in observation_choices(child)]
        case gymnasium.spaces.Discrete():
            return [(range(int(space.start), int(space.start) + int(space.n)),)]
        case gymnasium.spaces.MultiDiscrete():
            bounds = zip(space.start.ravel(), space.nvec.ravel(), strict=True)
            return [tuple(range(int(start), int(start) + int(size)) for start, size in bounds)]
    return [()]


def action_mask_spec(space: gymnasium.Space) -> jax.ShapeDtypeStruct:
    """Return one action mask's shape, see `EnvStep.action_mask`.

    Raises:
        ConfigError: the action space is neither Discrete nor a vector of MultiDiscrete.
    """
    return jax.ShapeDtypeStruct((sum(num_choices(space)),), np.bool_)


def complete_mask(mask: Array, space: gymnasium.Space) -> Array:
    """Return the masks `[..., A]` with all actions of a choice legal where none is.

    Environments report no legal action when an episode has ended, and a policy needs one in every
    row; the action of such a row is ignored.
    """
    xp = np if isinstance(mask, np.ndarray) else jnp
    ends = np.cumsum(num_choices(space))[:-1]
    parts = xp.split(mask, ends, axis=-1)
    return xp.concatenate([part | ~part.any(axis=-1, keepdims=True) for part in parts], axis=-1)


def environment_spec(
    observation: gymnasium.Space,
    action: gymnasium.Space,
    *,
    has_masks: bool = False,
    combined: bool = False,
) -> EnvironmentSpec:
    """Return the spec of an environment with these native spaces.

    Args:
        observation: of one environment.
        action: of one environment.
        has_masks: whether it reports the legal actions.
        combined: see `agent_action_space`.

    Raises:
        ConfigError: a space is not supported.
    """
    agent_space = agent_action_space(action, combined=combined)
    return EnvironmentSpec(
        observation=observation_spec(observation),
        action_space=agent_space,
        native_action_space=action,
        action_mask=action_mask_spec(agent_space) if has_masks else None,
        choices=tuple(choices) if any(choices := observation_choices(observation)) else None,
    )


def check_action(action: np.ndarray, space: gymnasium.Space, num_envs: int) -> None:
    """Check that `action` is a valid NumPy `[B, ...]` of the space's dtype.

    Discrete actions must be in the space. Continuous actions must only be finite, since
    `sebulba.envs.actions.to_native` clips them.

    Raises:
        ActionError: the action is invalid.
    """
    if not isinstance(action, np.ndarray):
        raise ActionError(f"expected a NumPy action, got {type(action).__name__}")
    check_action_structure(action, space, num_envs)
    if isinstance(space, gymnasium.spaces.Box):
        expected, good = "finite actions for", np.isfinite(action)
    else:
        low, high = _bounds(space)
        expected, good = "actions inside", (action >= low) & (action <= high)
    if not good.all():
        env = int(np.argwhere(~good)[0, 0])
        raise ActionError(f"expected {expected} {space}, got {action[env]} for env {env}")


def check_action_structure(
    action: np.ndarray | jax.Array, space: gymnasium.Space, num_envs: int
) -> None:
    """Check that `action`, which may be traced, is a `[B, ...]` of the space's dtype.

    Raises:
        ActionError: the shape or dtype is wrong.
    """
    expected = (num_envs, *space.shape)
    shape, dtype = getattr(action, "shape", None), getattr(action, "dtype", None)
    if shape != expected or dtype != space.dtype:
        raise ActionError(
            f"expected an action of {space.dtype}{list(expected)} for {num_envs} environments of "
            f"{space}, got {dtype}{list(shape) if shape is not None else ''}"
        )


def _bounds(space: gymnasium.Space) -> tuple[np.ndarray, np.ndarray]:
    if isinstance(space, gymnasium.spaces.MultiDiscrete):
        return space.start, space.start + space.nvec - 1
    return space.start, space.start + space.n - 1


def _narrow(dtype: np.dtype) -> np.dtype:
    dtype = np.dtype(dtype)
    return NARROWED.get(dtype, dtype)
