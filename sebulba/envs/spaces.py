"""Spaces as an agent sees them, and the way of an agent's action back to the environment's.

An agent sees 32 bits, and continuous actions in [-1, 1] wherever the environment bounds them.
"""

import dataclasses
from collections.abc import Callable

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from sebulba.envs.base import ActionError
from sebulba.errors import ConfigError
from sebulba.types import Array, PyTree

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


def observation_spec(space: gymnasium.Space) -> PyTree:
    """Returns one observation's `jax.ShapeDtypeStruct`s; `Dict` and `Tuple` become pytrees.

    Raises:
        ConfigError: a leaf is no array of a fixed shape.
    """
    if isinstance(space, gymnasium.spaces.Dict):
        return {name: observation_spec(child) for name, child in space.items()}
    if isinstance(space, gymnasium.spaces.Tuple):
        return tuple(observation_spec(child) for child in space)
    if isinstance(space, _ARRAY_SPACES):
        return jax.ShapeDtypeStruct(space.shape, _narrow(space.dtype))
    raise ConfigError(
        f"expected observations of Box, Discrete, MultiDiscrete or MultiBinary, also in Dict and "
        f"Tuple, got {space}: wrap the environment that env.id names so that it gives arrays"
    )


def agent_action_space(space: gymnasium.Space) -> gymnasium.Space:
    """Returns the space that agents act in: Discrete or MultiDiscrete of int32, Box of float32.

    Where a Box has both bounds the agent's are -1 and 1; see `ActionScaling`.

    Raises:
        ConfigError: it is none of these.
    """
    if isinstance(space, gymnasium.spaces.Discrete):
        return gymnasium.spaces.Discrete(int(space.n), start=int(space.start), dtype=np.int32)
    if isinstance(space, gymnasium.spaces.MultiDiscrete):
        return gymnasium.spaces.MultiDiscrete(space.nvec, start=space.start, dtype=np.int32)
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
        f"expected actions of Discrete, MultiDiscrete or Box, got {space}: wrap the environment "
        "that env.id names so that its action is one array"
    )


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ActionScaling:
    """Takes actions of `agent_action_space` to the environment's own units.

    A component of a Box that is bounded on both sides goes from [-1, 1] to [low, high], linearly;
    all others stay as they are. What is beyond a bound is clipped to it, here and not in the agent:
    the density of a Gaussian is that of the action which it drew.
    """

    low: np.ndarray  # [1, ...], -inf where there is no bound
    high: np.ndarray  # [1, ...]
    centre: np.ndarray  # [1, ...]
    half_range: np.ndarray  # [1, ...]

    def __call__(self, action: Action) -> Action:
        """Returns `[B, ...]` of an action `[B, ...]`, NumPy for NumPy, traced for traced."""
        numpy = np if isinstance(action, np.ndarray) else jnp
        return numpy.clip(self.centre + action * self.half_range, self.low, self.high)


def action_scaling(space: gymnasium.Space) -> Callable[[Action], Action]:
    """Returns what takes an agent's actions to the space of the environment."""
    if not isinstance(space, gymnasium.spaces.Box) or np.issubdtype(space.dtype, np.integer):
        return lambda action: action
    low, high = _float32_bounds(space)
    bounded = np.isfinite(low) & np.isfinite(high)
    # In halves: the sum of two bounds may be beyond float32.
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
    """Raises unless `action` is a NumPy `[B, ...]` of the space's dtype that can be acted.

    Discrete actions have to be in the space; continuous ones have to be finite, since
    `ActionScaling` clips them.

    Raises:
        ActionError: it is not.
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
    """Raises unless `action`, which may be traced, is a `[B, ...]` of the space's dtype.

    Raises:
        ActionError: it is not.
    """
    expected = (num_envs, *space.shape)
    shape, dtype = getattr(action, "shape", None), getattr(action, "dtype", None)
    if shape != expected or dtype != space.dtype:
        raise ActionError(
            f"expected an action of {space.dtype}{list(expected)} for {num_envs} environments of "
            f"{space}, got {dtype}{list(shape) if shape is not None else ''}"
        )


def _float32_bounds(space: gymnasium.spaces.Box) -> tuple[np.ndarray, np.ndarray]:
    with np.errstate(over="ignore"):  # A bound beyond float32 is none.
        return space.low.astype(np.float32), space.high.astype(np.float32)


def _bounds(space: gymnasium.Space) -> tuple[np.ndarray, np.ndarray]:
    if isinstance(space, gymnasium.spaces.MultiDiscrete):
        return space.start, space.start + space.nvec - 1
    return space.start, space.start + space.n - 1


def _narrow(dtype: np.dtype) -> np.dtype:
    dtype = np.dtype(dtype)
    return _NARROWED.get(dtype, dtype)
