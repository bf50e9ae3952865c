"""The answer to a question, and the first difference between two pytrees."""

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from sebulba.pytree import leaf_name, without_key
from sebulba.types import PyTree

Status = Literal["pass", "fail", "skip", "unclear"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
    """The answer to a question about an agent."""

    status: Status
    detail: str
    likely_cause: str | None = None  # of a failure; None: the question's own


def passed(detail: str) -> Answer:
    """Return a ✓ with what was compared."""
    return Answer(status="pass", detail=detail)


def failed(detail: str, likely_cause: str | None = None) -> Answer:
    """Return a ✗ with the leaf, the row, what was expected and what came."""
    return Answer(status="fail", detail=detail, likely_cause=likely_cause)


def skipped(reason: str) -> Answer:
    """Return a –: the question does not apply, or cannot be asked here."""
    return Answer(status="skip", detail=reason)


def unclear(reason: str) -> Answer:
    """Return a ?: what was measured neither proves the property nor disproves it."""
    return Answer(status="unclear", detail=reason)


def passed_unless(failure: str | None, detail: str) -> Answer:
    """Return a ✗ with the failure, or a ✓ with `detail` if there is none."""
    return passed(detail) if failure is None else failed(failure)


def first_difference(
    expected: PyTree,
    got: PyTree,
    *,
    what: str,
    axes: tuple[str, ...],
    place: str | None = None,
    tolerance: float = 0.0,
) -> str | None:
    """Describe the first element in which two pytrees of equal structure differ; None: equal.

    Args:
        expected: pytree of arrays.
        got: pytree of arrays of the same shapes.
        what: the pytree's name, put before the path of a leaf.
        axes: names of the leading axes, such as `("row", "env")`.
        place: the actor and act cycle, put before the indices.
        tolerance: absolute, and relative to the expected number.
    """
    expected_leaves = jax.tree_util.tree_leaves_with_path(as_numpy(expected))
    for (path, left), right in zip(expected_leaves, jax.tree.leaves(as_numpy(got)), strict=True):
        differs = _differs(left, right, tolerance)
        if differs.any():
            index = tuple(int(i) for i in np.argwhere(differs)[0])
            places = [f"{axis} {i}" for axis, i in zip(axes, index, strict=False)]
            where = ", ".join([place, *places] if place else places)
            rest = f"[{','.join(map(str, index[len(axes) :]))}]" if index[len(axes) :] else ""
            return (
                f"{leaf_name(path, what)}{rest} ({where}): expected {left[index]},"
                f" got {right[index]}"
            )
    return None


def _differs(left: np.ndarray, right: np.ndarray, tolerance: float) -> np.ndarray:
    if jnp.issubdtype(left.dtype, jnp.inexact):
        return ~np.isclose(left, right, rtol=tolerance, atol=tolerance, equal_nan=True)
    return np.asarray(left != right)


def is_equal(left: PyTree, right: PyTree) -> bool:
    """Whether two pytrees of equal structure have equal elements; NaN equals NaN."""
    pairs = zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    return all(np.array_equal(a, b, equal_nan=True) for a, b in pairs)


def as_numpy(tree: PyTree) -> PyTree:
    """Copy a pytree to host memory, random keys as their data."""
    return jax.tree.map(lambda leaf: np.asarray(jax.device_get(without_key(leaf))), tree)
