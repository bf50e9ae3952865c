"""Checks of what `reset` and `step` of a Gymnasium environment return.

Gymnasium's vector environments cast or broadcast some wrong values in silence, and raise far from
the environment at others. Worker processes import this module, so it must not import jax.
"""

import copy
import inspect
import numbers
from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from sebulba.envs.gymnasium_wrappers import ACTION_MASK

_NUMBERS = frozenset({float, int, bool, np.float64, np.float32})
_FLAGS = frozenset({bool, np.bool_})
_PLAIN_WRAPPERS = (  # return what they get, and look into no `info`
    gymnasium.wrappers.PassiveEnvChecker,
    gymnasium.wrappers.OrderEnforcing,
    gymnasium.wrappers.TimeLimit,
)
_OF_RESET = "(observation, info)"
_OF_STEP = "(observation, reward, terminated, truncated, info)"


class ResultError(TypeError):
    """An environment returned a value of a wrong type or shape.

    The message is `"WHAT: expected ..., got ..."`.
    """


class CheckedResults(gymnasium.Wrapper):
    """Raises a `ResultError` if `reset` or `step` return a value of a wrong type or shape."""

    def __init__(self, env: gymnasium.Env, *, drops_info: bool, copies: bool = False):
        """Wrap an environment.

        Args:
            env: the environment, or its outermost wrapper.
            drops_info: whether only the action mask of `info` is returned. A vector environment
                collects every `info` into arrays, which fails where environments differ.
            copies: whether observations are copied: a wrapper outside may keep them, as a stack of
                frames does, while an environment may write all of them into the same memory.
        """
        super().__init__(env)
        self._name = getattr(
            env, "own_class", type(env)
        ).__name__  # `own_class`: of a converted one
        self._drops_info = drops_info
        self._copies = copies
        self._space = space = env.observation_space
        is_array = isinstance(space, Box | MultiBinary)
        # Of a NumPy array that need not be looked at further; kept here, since this costs time.
        self._shape = space.shape if is_array else None
        self._dtype = space.dtype if is_array else None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode, and check what the environment returns."""
        try:
            result = self.env.reset(seed=seed, options=options)
        except TypeError:
            self._check_reset_signature()
            raise
        if not isinstance(result, tuple | list) or len(result) != 2:
            raise self._error("reset", "result", _OF_RESET, result)
        observation, info = result
        return self._checked("reset", observation), self._checked_info("reset", info)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take one step, and check what the environment returns."""
        result = self.env.step(action)
        if not isinstance(result, tuple | list) or len(result) != 5:
            error = self._error("step", "result", _OF_STEP, result)
            if isinstance(result, tuple | list) and len(result) == 4:
                raise ResultError(f"{error}, which returns terminated and truncated, not one done")
            raise error
        observation, reward, terminated, truncated, info = result
        if type(reward) not in _NUMBERS and not is_number(reward):
            raise self._error("step", "reward", "a number", reward)
        if type(terminated) not in _FLAGS and not is_flag(terminated):
            raise self._error("step", "terminated", "a bool", terminated)
        if type(truncated) not in _FLAGS and not is_flag(truncated):
            raise self._error("step", "truncated", "a bool", truncated)
        info = self._checked_info("step", info)
        return self._checked("step", observation), reward, terminated, truncated, info

    def _checked(self, method: str, observation: Any) -> Any:
        is_array = type(observation) is np.ndarray
        if is_array and observation.shape == self._shape and observation.dtype == self._dtype:
            return observation.copy() if self._copies else observation
        for mismatch in find_mismatches(observation, self._space):
            raise ResultError(f"{mismatch}; correct {method} of {self._name}")
        return copy.deepcopy(observation) if self._copies else observation

    def _checked_info(self, method: str, info: Any) -> dict[str, Any]:
        if not isinstance(info, dict):
            raise self._error(method, "info", "a dict", info)
        if not (self._drops_info and info):
            return info
        return {ACTION_MASK: info[ACTION_MASK]} if ACTION_MASK in info else {}

    def _check_reset_signature(self) -> None:
        """Raise an error if `reset` cannot take a seed and options."""
        try:
            inspect.signature(self.env.reset).bind(seed=None, options=None)
        except TypeError as error:
            raise ResultError(
                "result: expected `reset(self, *, seed=None, options=None)`, got"
                f" reset{inspect.signature(self.env.reset)}; correct reset of {self._name}"
            ) from error

    def _error(self, method: str, what: str, expected: str, got: Any) -> ResultError:
        return ResultError(
            f"{what}: expected {expected}, got {describe_value(got)}; correct {method} of"
            f" {self._name}"
        )


def checked(env: gymnasium.Env) -> gymnasium.Env:
    """Return the environment with its results checked, and without what is unused of `info`.

    The checks are directly around the environment, since a wrapper would raise at wrong values
    before one outside sees them. Outside of wrappers other than Gymnasium's own, whose results may
    be wrong as well, they are made once more.
    """
    innermost = env
    is_plain = True
    while isinstance(innermost, gymnasium.Wrapper):
        outer, innermost = innermost, innermost.env
        is_plain = is_plain and type(outer) in _PLAIN_WRAPPERS
    checks = CheckedResults(innermost, drops_info=is_plain, copies=not is_plain)
    if innermost is env:
        return checks
    outer.env = checks
    return env if is_plain else CheckedResults(env, drops_info=True)


def check_batch(observation: Any, *values: Any, space: gymnasium.Space, num_envs: int) -> None:
    """Check what a vector environment of the user's own returns.

    Args:
        observation: of all environments.
        values: of a step: rewards, terminated and truncated; of a reset: none.
        space: of the observations of all environments.
        num_envs: `B`.

    Raises:
        ResultError: a value has a wrong type or shape.
    """
    for mismatch in find_mismatches(observation, space):
        raise ResultError(mismatch)
    for what, value in zip(("reward", "terminated", "truncated"), values, strict=False):
        array, kinds = _as_array(value), "biuf" if what == "reward" else "biu"
        if array.shape != (num_envs,) or array.dtype.kind not in kinds:
            expected = f"{'numbers' if what == 'reward' else 'bools'} [{num_envs}]"
            raise ResultError(f"{what}: expected {expected}, got {describe_value(value)}")


def is_number(value: Any) -> bool:
    """Return whether a value is one real number: a Python or NumPy number, or an array `[]`."""
    array = _as_array(value)
    if array.dtype.kind == "O":  # such as a Decimal
        return isinstance(value, numbers.Number)
    return array.shape == () and array.dtype.kind in "biuf"


def is_flag(value: Any) -> bool:
    """Return whether a value is a bool, an array `[]` of one, or the number 0 or 1."""
    array = _as_array(value)
    return array.shape == () and array.dtype.kind in "biuf" and bool(array in (0, 1))


def find_mismatches(
    observation: Any, space: gymnasium.Space, path: str = "observation"
) -> Iterator[str]:
    """Yield a line for each leaf of an observation that does not fit its space."""
    if isinstance(space, Dict) and not isinstance(observation, Mapping):
        names = ", ".join(map(repr, space))
        yield f"{path}: expected a dict with {names}, got {describe_value(observation)}"
        return
    if isinstance(space, Dict | Tuple):
        children = space.items() if isinstance(space, Dict) else enumerate(space)
        for name, child in children:
            try:
                part = observation[name]
            except (LookupError, TypeError):
                yield f"{path}.{name}: expected {child}, got no such leaf"
                continue
            yield from find_mismatches(part, child, f"{path}.{name}")
        return
    if not isinstance(space, Box | Discrete | MultiBinary | MultiDiscrete):
        return  # such as a text, which a wrapper may leave out
    array = _as_array(observation)
    can_cast = np.can_cast(array.dtype, space.dtype, "same_kind")
    if array.shape != space.shape or not can_cast:
        yield (
            f"{path}: expected {space.dtype}{list(space.shape)}, got {describe_value(observation)}"
        )
    elif isinstance(space, Discrete | MultiDiscrete) and not _is_inside(array, space):
        yield f"{path}: expected a value of {space}, got {array.tolist()}"
    elif array.dtype != space.dtype and (lost := lost_integers(array, space.dtype)).size:
        yield f"{path}: expected integers of {space.dtype}, got {lost[0]}"


def lost_integers(array: np.ndarray, dtype: Any) -> np.ndarray:
    """Return the integers `[n]` of an array that another dtype of integers does not have."""
    if array.dtype.kind not in "iu" or np.dtype(dtype).kind not in "iu":
        return np.zeros(0, array.dtype)
    return array[array != array.astype(dtype)]


def describe_value(value: Any) -> str:
    """Return what a value is, in a few words: `None`, `'text'`, `float32[3]`, `(float, bool)`."""
    if value is None or isinstance(value, str):
        return repr(value)
    if isinstance(value, tuple):
        return f"({', '.join(map(describe_value, value))})"
    if isinstance(value, dict):
        return f"dict with {', '.join(map(repr, value))}" if value else "an empty dict"
    if isinstance(value, bool | int | float | complex):
        return f"{value!r} ({type(value).__name__})"
    array = _as_array(value)
    return type(value).__name__ if array.dtype == object else f"{array.dtype}{list(array.shape)}"


def _as_array(value: Any) -> np.ndarray:
    """Return a value as an array; parts of different shapes as one object `[]`."""
    try:
        return np.asarray(value)
    except ValueError:
        array = np.empty((), object)
        array[()] = value
        return array


def _is_inside(array: np.ndarray, space: Discrete | MultiDiscrete) -> bool:
    size = space.n if isinstance(space, Discrete) else space.nvec
    return bool(((array >= space.start) & (array < space.start + size)).all())
