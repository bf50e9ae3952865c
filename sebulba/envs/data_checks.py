"""Checks of environment data: pytree structure, shapes, dtypes, finite numbers."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sebulba.envs.base import EnvironmentDataError
from sebulba.errors import ConfigError
from sebulba.pytree import describe_inline, leaf_name
from sebulba.types import EnvironmentSpec, EnvStep, PyTree

_MEMBERS = ("num_envs", "spec", "reset", "step", "fused", "close")


def check_environment(environment: Any, *, suite: str, name: str) -> None:
    """Check what a suite's factory returned: an environment with numbers to observe and actions.

    Args:
        environment: the result.
        suite: `env.suite`, for messages.
        name: `env.id`, likewise.

    Raises:
        ConfigError: it is no `Environment`, or an array of its spec has no elements.
    """
    if missing := [each for each in _MEMBERS if not hasattr(environment, each)]:
        raise ConfigError(
            f"env.suite: expected {suite} to return an Environment, with"
            f" {', '.join(_MEMBERS)}, got {type(environment).__name__} without"
            f" {', '.join(missing)}; see docs/add_an_environment.md"
        )
    spec = environment.spec
    if not isinstance(spec, EnvironmentSpec):
        raise ConfigError(
            f"env.suite: expected `spec` of the environment of {suite} to be an EnvironmentSpec,"
            f" got {type(spec).__name__}"
        )
    empty = [path for path, leaf in _leaves(spec.observation) if 0 in leaf.shape]
    if empty or not jax.tree.leaves(spec.observation):
        raise ConfigError(
            f"env.id: expected observations with at least one number, got"
            f" {describe_inline(spec.observation)} of {name}. Leave the empty array out"
        )
    stack, leaves = spec.frame_stack, jax.tree.leaves(spec.observation)
    if stack is not None and (
        stack.size < 2
        or len(leaves) != 1
        or not 0 <= stack.axis < len(leaves[0].shape)
        or leaves[0].shape[stack.axis] % stack.size
    ):
        raise ConfigError(
            f"env.suite: expected `spec.frame_stack` of {name} to have a size of at least 2 that"
            f" divides its axis of the one observation, got {stack} and observations of"
            f" {describe_inline(spec.observation)}"
        )
    if 0 in (spec.action_space.shape or ()):
        raise ConfigError(
            f"env.id: expected at least one action, got {spec.action_space} of {name}"
        )


def check_structure(env_step: EnvStep, expected: EnvStep) -> None:
    """Check the structure, shapes and dtypes of one row `[B, ...]`, which may be traced.

    Args:
        env_step: the row from the environments.
        expected: a valid row, or its `jax.ShapeDtypeStruct`s.

    Raises:
        EnvironmentDataError: a leaf is missing, unexpected, or has a wrong shape or dtype.
    """
    got = {path: _describe(leaf) for path, leaf in _leaves(env_step)}
    wanted = {path: _describe(leaf) for path, leaf in _leaves(expected)}
    for path in dict.fromkeys([*wanted, *got]):
        want, have = wanted.get(path, "no such leaf"), got.get(path, "no such leaf")
        if want != have:
            raise EnvironmentDataError(f"{path} of the environments: expected {want}, got {have}")


def is_finite(env_steps: EnvStep) -> jax.Array:
    """Return `[]` bool: whether all observations and rewards are finite. Traceable."""
    leaves = [leaf for _, leaf in _floating(env_steps)]
    return jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in leaves]).all()


def describe_non_finite(env_steps: EnvStep) -> str | None:
    """Return where the first NaN or infinity in rows `[T, B, ...]` is; None if all are finite.

    The earliest row counts, since later non-finite values may follow from it.
    """
    found = []
    for path, leaf in _floating(env_steps):
        where = np.argwhere(~np.isfinite(np.asarray(leaf)))
        if len(where):
            row, env, *index = map(int, where[0])
            value = np.asarray(leaf)[tuple(where[0])]
            name = f"{path}{index or ''} of env {env}"
            # A float64 that is too large for float32 is infinite here, and not in the environment.
            expected = f"expected finite numbers of {leaf.dtype}"
            text = f"{name} is {value} in row {row} of the trajectory: {expected}"
            found.append((row, env, text))
    return min(found)[2] if found else None


def _leaves(tree: PyTree) -> Iterator[tuple[str, Any]]:
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        yield leaf_name(path), leaf


def _floating(env_steps: EnvStep) -> Iterator[tuple[str, Any]]:
    for path, leaf in _leaves({"observation": env_steps.observation, "reward": env_steps.reward}):
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            yield path, leaf


def _describe(leaf: Any) -> str:
    if not hasattr(leaf, "dtype"):
        return type(leaf).__name__
    return describe_inline(leaf)


def check_integers_fit(observation: np.ndarray, converted: np.ndarray) -> None:
    """Check that integers of an observation are the same in the dtype of its spec.

    Args:
        observation: `[B, ...]`, a leaf as the environments return it.
        converted: the same in the dtype of the spec, which has at most 32 bits.

    Raises:
        EnvironmentDataError: one is not.
    """
    if (changed := np.argwhere(observation != converted)).size:
        raise EnvironmentDataError(
            f"an observation of env {changed[0][0]} is {observation[tuple(changed[0])]}; expected"
            f" integers of {converted.dtype}, which JAX computes with. Change them with"
            " env.wrappers"
        )
