"""Conversion between an environment's native spaces and those of the agent.

Agents see 32-bit dtypes, and continuous actions in [-1, 1] where the environment bounds them.
"""

import dataclasses
from collections.abc import Callable

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from sebulba.envs.base import ActionError
from sebulba.errors import ConfigError
from sebulba.types import Array, EnvironmentSpec, PyTree

Action = Array

_NARROWED = {
    np.dtype(np.float64): np.dtype(np.float32),
    np.dtype(np.int64): np.dtype(np.int32),
    np.dtype(np.uint64): np.dtype(np.uint32),
}

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
            return [(range(int(space.start), int(space.start + space.n)),)]
        case gymnasium.spaces.MultiDiscrete():
            bounds = zip(space.start.ravel(), space.nvec.ravel(), strict=True)
            return [tuple(range(int(start), int(start + size)) for start, size in bounds)]
    return [()]


def agent_action_space(space: gymnasium.Space) -> gymnasium.Space:
    """Return the agent's action space: Discrete or MultiDiscrete of int32, or Box of float32.

    Components of a Box with both bounds get the bounds -1 and 1; see `ActionScaling`.

    Raises:
        ConfigError: the native space is not Discrete, MultiDiscrete, MultiBinary or Box.
    """
    if isinstance(space, gymnasium.spaces.Discrete):
        return gymnasium.spaces.Discrete(int(space.n), start=int(space.start), dtype=np.int32)
    if isinstance(space, gymnasium.spaces.MultiDiscrete):
        return gymnasium.spaces.MultiDiscrete(space.nvec, start=space.start, dtype=np.int32)
    if isinstance(space, gymnasium.spaces.MultiBinary):
        return gymnasium.spaces.MultiDiscrete(np.full(space.shape, 2), dtype=np.int32)
    if isinstance(space, gymnasium.spaces.Box) and np.issubdtype(space.dtype, np.integer):
        size = space.high.astype(np.int64) - space.low + 1
        return gymnasium.spaces.MultiDiscrete(size, start=space.low, dtype=np.int32)
    if isinstance(space, gymnasium.spaces.Box):
        low, high = _float32_bounds(space)
        bounded = np.isfinite(low) & np.isfinite(high)
        return gymnasium.spaces.Box(
            np.where(bounded, np.float32(-1), low),
            np.where(bounded, np.float32(1), high),
            dtype=np.float32,
        )
    raise ConfigError(
        "env.id: expected actions of Discrete, MultiDiscrete, MultiBinary or Box, got"
        f" {space}. Set env.wrappers to a wrapper of your own whose action is one array, or an"
        " option of the environment that selects other actions"
    )


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


def num_choices(space: gymnasium.Space) -> list[int]:
    """Return the sizes of the components of an action that can be masked.

    Raises:
        ConfigError: the action space is neither Discrete nor a vector of MultiDiscrete.
    """
    if isinstance(space, gymnasium.spaces.Discrete):
        return [int(space.n)]
    if isinstance(space, gymnasium.spaces.MultiDiscrete) and len(space.shape) == 1:
        return [int(size) for size in space.nvec]
    raise ConfigError(
        "env.id: expected Discrete actions or a vector of MultiDiscrete actions with an action"
        f" mask, got {space}; remove the action mask from the environment"
    )


def environment_spec(
    observation: gymnasium.Space, action: gymnasium.Space, *, has_masks: bool = False
) -> EnvironmentSpec:
    """Return the spec of an environment with these native spaces, or raise a ConfigError."""
    agent_space = agent_action_space(action)
    return EnvironmentSpec(
        observation=observation_spec(observation),
        action_space=agent_space,
        native_action_space=action,
        action_mask=action_mask_spec(agent_space) if has_masks else None,
        choices=tuple(choices) if any(choices := observation_choices(observation)) else None,
    )


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ActionScaling:
    """Scale actions of `agent_action_space` to the environment's native units.

    Components with two bounds are mapped linearly from [-1, 1] to [low, high]; others are
    unchanged. Actions are clipped to the bounds here and not in the agent, whose Gaussian density
    belongs to the action as sampled.
    """

    low: np.ndarray  # [1, ...], -inf: unbounded
    high: np.ndarray  # [1, ...]
    centre: np.ndarray  # [1, ...]
    half_range: np.ndarray  # [1, ...]

    def __call__(self, action: Action) -> Action:
        """Return the native action `[B, ...]`; NumPy stays NumPy."""
        xp = np if isinstance(action, np.ndarray) else jnp
        return xp.clip(self.centre + action * self.half_range, self.low, self.high)


def action_scaling(space: gymnasium.Space) -> Callable[[Action], Action]:
    """Return the function from the agent's actions to those of the native `space`."""
    if not isinstance(space, gymnasium.spaces.Box) or np.issubdtype(space.dtype, np.integer):
        return lambda action: action
    low, high = _float32_bounds(space)
    bounded = np.isfinite(low) & np.isfinite(high)
    # Halve first: high - low can overflow float32.
    half_low, half_high = (
        0.5 * np.where(bounded, bound, np.float32(unit)) for bound, unit in ((low, -1), (high, 1))
    )
    return ActionScaling(
        low=low[None],
        high=high[None],
        centre=(half_low + half_high)[None],
        half_range=(half_high - half_low)[None],
    )


def check_action(action: np.ndarray, space: gymnasium.Space, num_envs: int) -> None:
    """Check that `action` is a valid NumPy `[B, ...]` of the space's dtype.

    Discrete actions must be in the space. Continuous actions must only be finite, since
    `ActionScaling` clips them.

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


def _float32_bounds(space: gymnasium.spaces.Box) -> tuple[np.ndarray, np.ndarray]:
    with np.errstate(over="ignore"):  # A bound outside float32 becomes infinite: no bound.
        return space.low.astype(np.float32), space.high.astype(np.float32)


def _bounds(space: gymnasium.Space) -> tuple[np.ndarray, np.ndarray]:
    if isinstance(space, gymnasium.spaces.MultiDiscrete):
        return space.start, space.start + space.nvec - 1
    return space.start, space.start + space.n - 1


def _narrow(dtype: np.dtype) -> np.dtype:
    dtype = np.dtype(dtype)
    return _NARROWED.get(dtype, dtype)
