"""Checks of environment data: pytree structure, shapes, dtypes, finite numbers."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sebulba.envs.base import EnvironmentDataError
from sebulba.pytree import describe_inline, leaf_name
from sebulba.types import EnvStep, PyTree


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
            found.append((row, env, f"{path}{index or ''} of env {env} is {value} in row {row}"))
    if not found:
        return None
    return f"{min(found)[2]} of the trajectory: expected finite numbers"


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
