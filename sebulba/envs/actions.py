"""Actions as agents choose them and as environments take them: the one place that knows both.

An agent's action is one array per environment: a choice or a vector of choices, from 0 on, or a
vector of real numbers, in [-1, 1] where the environment bounds them. The environment's own action,
the *native* one, has its space's values, shape, dtype and structure. Components are in the order of
`gymnasium.spaces.flatten`. Worker processes import this module, so it must not import jax.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from sebulba.errors import ConfigError

if TYPE_CHECKING:
    from sebulba.types import Array, EnvironmentSpec, PyTree

NARROWED = {
    np.dtype(np.float64): np.dtype(np.float32),
    np.dtype(np.int64): np.dtype(np.int32),
    np.dtype(np.uint64): np.dtype(np.uint32),
}
"""The dtype that stands for each 64-bit dtype in JAX."""

_MOST_VALUES = 2**16  # of one choice: a network has an output for each
_INT32 = np.iinfo(np.int32)
_OWN_WRAPPER = "Set env.wrappers to a wrapper of your own with other actions"


def agent_action_space(space: gymnasium.Space, *, combined: bool = False) -> gymnasium.Space:
    """Return the agent's action space for a native one.

    A space of one choice becomes Discrete, of several a vector of MultiDiscrete, of real numbers a
    vector of Box, whose components with two bounds get the bounds -1 and 1; `Dict` and `Tuple`
    become one of these.

    Args:
        space: of the environment.
        combined: whether the combinations of all choices are one Discrete, numbered row by row.

    Raises:
        ConfigError: the space has discrete and continuous parts, too many values, or other parts.
    """
    parts = [(path, leaf, _choices(leaf, path)) for path, leaf in _leaves(space)]
    discrete = [path for path, _, choices in parts if choices is not None]
    continuous = [path for path, _, choices in parts if choices is None]
    if discrete and continuous:
        raise ConfigError(
            "env.id: expected actions that are all discrete or all continuous, got discrete"
            f" {', '.join(discrete)} and continuous {', '.join(continuous)}. To choose among 11"
            " values for each number, set env.wrappers:"
            " [sebulba.envs.gymnasium_wrappers:DiscretizedBoxes], or around a JAX task"
            " [sebulba.envs.discretized:Discretized]"
        )
    if continuous:
        bounds = [_agent_bounds(leaf) for _, leaf, _ in parts]
        low, high = (np.concatenate(each) for each in zip(*bounds, strict=True))
        return Box(low, high, dtype=np.float32)
    sizes = [size for *_, choices in parts if choices is not None for size in choices[0].tolist()]
    if not sizes:
        raise ConfigError(f"env.id: expected an action, got {space} without parts. {_OWN_WRAPPER}")
    if combined or len(sizes) == 1:
        return Discrete(math.prod(sizes), dtype=np.int32)
    return MultiDiscrete(sizes, dtype=np.int32)


def num_choices(space: gymnasium.Space) -> list[int]:
    """Return the sizes of the choices of an agent's action, which a mask has entries for.

    Raises:
        ConfigError: the action is continuous.
    """
    if isinstance(space, Discrete):
        return [int(space.n)]
    if isinstance(space, MultiDiscrete) and len(space.shape) == 1:
        return [int(size) for size in space.nvec]
    raise ConfigError(
        "env.id: expected Discrete actions or a vector of MultiDiscrete actions with an action"
        f" mask, got {space}; remove the action mask from the environment"
    )


def to_native(spec: "EnvironmentSpec") -> Callable[["Array"], "PyTree"]:
    """Return the function from an agent's actions `[B, ...]` to the environment's.

    NumPy stays NumPy, in the native dtypes. JAX arrays, which may be traced, get 32 bits for 64.
    Continuous actions are scaled, and clipped to the bounds here and not in the agent, whose
    Gaussian density belongs to the action as sampled.

    Args:
        spec: its `native_action_space` is converted to; None: its `action_space`.
    """
    agent, native = spec.action_space, spec.native_action_space
    native = agent if native is None else native
    leaves = [leaf for _, leaf in _leaves(native)]
    ends = np.cumsum([math.prod(leaf.shape) for leaf in leaves])[:-1].tolist()
    combinations: tuple[int, ...] | None = None
    if isinstance(agent, Box):
        lows, highs = (np.split(bound.ravel(), ends) for bound in (agent.low, agent.high))
        parts = [_scaling(*each) for each in zip(leaves, lows, highs, strict=True)]
    else:
        choices = [_choices(leaf) for leaf in leaves]
        sizes, starts = (np.concatenate(each) for each in zip(*filter(None, choices), strict=True))
        if agent.shape == () and len(sizes) > 1:
            combinations = tuple(sizes.tolist())
        else:  # An adapter may have a space that is not from 0 on, and convert nothing.
            starts = starts - np.ravel(agent.start)
            if native.shape == agent.shape and not starts.any():
                return _cast_to(native.dtype)
        parts = [_shift(*each) for each in zip(leaves, np.split(starts, ends), strict=True)]
    if combinations is None and not isinstance(native, Dict | Tuple):
        return parts[0]

    def convert(action: "Array") -> "PyTree":
        xp = _namespace(action)
        if combinations is not None:
            components = xp.unravel_index(action, combinations)
            action = xp.stack(components, axis=-1).astype(np.int32)
        action = action.reshape(len(action), -1)
        slices = xp.split(action, ends, axis=-1)
        converted = (part(each) for part, each in zip(parts, slices, strict=True))
        return _structured(native, converted)

    return convert


def flat_mask(space: gymnasium.Space, mask: Any, *, batch_axes: int = 0) -> "Array":
    """Return an action mask as one array `[..., A]`: of one choice after another.

    Args:
        space: the native action space.
        mask: an array, or arrays in the structure of the space, as `space.sample(mask=...)` takes.
        batch_axes: number of leading axes that each array has.

    Raises:
        ConfigError: the structure is another.
    """
    parts = [
        leaf.reshape(*leaf.shape[:batch_axes], -1)
        for leaf in (
            leaf if hasattr(leaf, "reshape") else np.asarray(leaf)
            for leaf in mask_leaves(space, mask)
        )
    ]
    return parts[0] if len(parts) == 1 else _namespace(parts[0]).concatenate(parts, axis=-1)


def mask_leaves(space: gymnasium.Space, mask: Any) -> Iterator[Any]:
    """Yield the parts of a mask, or of the space of a mask, in the order of an action's parts.

    Raises:
        ConfigError: the structure differs from that of the action `space`.
    """
    if isinstance(mask, Mapping):
        if not isinstance(space, Dict) or set(mask) != set(space):
            got = f"a dict of {', '.join(map(str, mask))}"
            raise ConfigError(f"env.id: expected an action mask as {space} has parts, got {got}")
        for name, child in space.items():
            yield from mask_leaves(child, mask[name])
    elif isinstance(mask, tuple | list | Tuple):
        children = list(space) if isinstance(space, Tuple) else [space] * len(mask)
        if len(children) != len(mask):
            got = f"a tuple of {len(mask)}"
            raise ConfigError(f"env.id: expected an action mask as {space} has parts, got {got}")
        for child, part in zip(children, mask, strict=True):
            yield from mask_leaves(child, part)
    else:
        yield mask


def discretized(space: gymnasium.Space, bins: int) -> gymnasium.Space:
    """Return an action space with a choice of `bins` values for each continuous component.

    Raises:
        ConfigError: a component has no bounds, or there are too few values.
    """
    if bins < 2:
        raise ConfigError(f"env.wrappers: expected bins of at least 2, got {bins}")
    if isinstance(space, Dict):
        return Dict([(name, discretized(child, bins)) for name, child in space.items()])
    if isinstance(space, Tuple):
        return Tuple([discretized(child, bins) for child in space])
    if not _is_continuous(space):
        return space
    if not space.is_bounded():
        raise ConfigError(f"env.wrappers: expected actions with bounds to discretize, got {space}")
    return MultiDiscrete(np.full(space.shape, bins)) if space.shape else Discrete(bins)


def undiscretized(space: gymnasium.Space, bins: int, action: "PyTree") -> "PyTree":
    """Return the action of `space` for one of `discretized`: values evenly spaced on its range."""
    if isinstance(space, Dict):
        return {name: undiscretized(each, bins, action[name]) for name, each in space.items()}
    if isinstance(space, Tuple):
        pairs = zip(space, action, strict=True)
        return tuple(undiscretized(child, bins, part) for child, part in pairs)
    if not _is_continuous(space):
        return action
    values = np.linspace(space.low, space.high, bins).reshape(bins, -1)
    if not isinstance(action, np.ndarray | np.generic):
        values = action.__array_namespace__().asarray(values.astype(np.float32))
    chosen = values[action.reshape(-1), np.arange(values.shape[1])]
    return _cast_to(space.dtype)(chosen.reshape(space.shape))


def _leaves(space: gymnasium.Space, path: str = "action") -> Iterator[tuple[str, gymnasium.Space]]:
    """Yield the parts of a space that are no Dict or Tuple, with names for errors."""
    if isinstance(space, Dict):
        for name, child in space.items():
            yield from _leaves(child, f"{path}.{name}")
    elif isinstance(space, Tuple):
        for i, child in enumerate(space):
            yield from _leaves(child, f"{path}[{i}]")
    else:
        yield path, space


def _structured(space: gymnasium.Space, leaves: Iterator["Array"]) -> "PyTree":
    """Return the leaves of an action in the structure of its space."""
    if isinstance(space, Dict):
        return {name: _structured(child, leaves) for name, child in space.items()}
    if isinstance(space, Tuple):
        return tuple(_structured(child, leaves) for child in space)
    return next(leaves)


def _choices(space: gymnasium.Space, path: str = "action") -> tuple[np.ndarray, np.ndarray] | None:
    """Return sizes and first values `[K]` of the choices of one part; None: it is continuous.

    Raises:
        ConfigError: the space has no bounds, values that JAX cannot hold, or is of another kind.
    """
    sizes: Any
    starts: Any
    match space:
        case Discrete():
            sizes, starts = space.n, space.start
        case MultiDiscrete():
            sizes, starts = space.nvec, space.start
        case MultiBinary():
            sizes, starts = np.full(space.shape, 2), np.zeros(space.shape)
        case Box() if _is_continuous(space):
            return None
        case Box():
            least, most = int(space.low.min()), int(space.high.max())
            if not space.is_bounded() or most - least >= _MOST_VALUES:
                raise ConfigError(
                    f"env.id: expected at most {_MOST_VALUES} values of an integer Box, got {space}"
                    f" in {path}. {_OWN_WRAPPER}, or give the Box its bounds"
                )
            starts = space.low.astype(np.int64)
            sizes = space.high.astype(np.int64) - starts + 1
        case _:
            raise ConfigError(
                "env.id: expected actions of Discrete, MultiDiscrete, MultiBinary or Box, also in"
                f" Dict and Tuple, got {space} in {path}. {_OWN_WRAPPER}, or an option of the"
                " environment that selects others"
            )
    sizes, starts = (np.ravel(each).astype(np.int64) for each in (sizes, starts))
    if starts.min() < _INT32.min or (starts + sizes).max() > _INT32.max:
        raise ConfigError(
            f"env.id: expected actions of 32 bits, got {space} in {path}. {_OWN_WRAPPER}"
        )
    return sizes, starts


def _shift(space: gymnasium.Space, start: np.ndarray) -> Callable[["Array"], "Array"]:
    """Return the function from choices `[B]` or `[B, K]` from 0 on to one part of the action."""
    cast, offset = _cast_to(space.dtype), start.astype(np.int32)[None]

    def shift(action: "Array") -> "Array":
        action = action.reshape(len(action), -1) + offset
        return cast(action.reshape(len(action), *space.shape))

    return shift


def _scaling(
    space: Box, agent_low: np.ndarray, agent_high: np.ndarray
) -> Callable[["Array"], "Array"]:
    """Return the function from an agent's vectors `[B, K]` to one continuous part of the action.

    Components in [-1, 1] are mapped linearly to [low, high]; others are unchanged.
    """
    cast = _cast_to(space.dtype)
    low, high = (bound.ravel() for bound in _float32_bounds(space))
    is_scaled = np.isfinite(low) & np.isfinite(high) & (agent_low == -1) & (agent_high == 1)
    # Halve first: high - low can overflow float32.
    half_low, half_high = (
        0.5 * np.where(is_scaled, bound, np.float32(unit)) for bound, unit in ((low, -1), (high, 1))
    )
    low, high, centre, half_range = (
        bound[None] for bound in (low, high, half_low + half_high, half_high - half_low)
    )

    def scale(action: "Array") -> "Array":
        action = _namespace(action).clip(centre + action * half_range, low, high)
        return cast(action.reshape(len(action), *space.shape))

    return scale


def _agent_bounds(space: Box) -> tuple[np.ndarray, np.ndarray]:
    """Return the bounds `[K]` of an agent's vector for a continuous space."""
    low, high = (bound.ravel() for bound in _float32_bounds(space))
    is_bounded = np.isfinite(low) & np.isfinite(high)
    return np.where(is_bounded, np.float32(-1), low), np.where(is_bounded, np.float32(1), high)


def _float32_bounds(space: Box) -> tuple[np.ndarray, np.ndarray]:
    """Return the bounds as float32 inside of them, since environments check what they are given."""
    with np.errstate(over="ignore"):  # A bound outside float32 becomes infinite: no bound.
        low, high = space.low.astype(np.float32), space.high.astype(np.float32)
        inside = np.nextafter(low, np.float32(np.inf)), np.nextafter(high, np.float32(-np.inf))
    return (
        np.where(np.isfinite(low) & (low < space.low), inside[0], low),
        np.where(np.isfinite(high) & (high > space.high), inside[1], high),
    )


def _is_continuous(space: gymnasium.Space) -> bool:
    return isinstance(space, Box) and np.issubdtype(space.dtype, np.floating)


def _cast_to(dtype: Any) -> Callable[["Array"], "Array"]:
    native = np.dtype(dtype)
    narrowed = NARROWED.get(native, native)

    def cast(action: "Array") -> "Array":
        return action.astype(native if isinstance(action, np.ndarray) else narrowed, copy=False)

    return cast


def _namespace(array: "Array") -> Any:
    return np if isinstance(array, np.ndarray) else array.__array_namespace__()
