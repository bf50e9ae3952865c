"""What a check found, and where two pytrees first differ."""

import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from sebulba.types import PyTree

Status = Literal["pass", "fail", "skip"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckResult:
    """A row of the table."""

    name: str
    status: Status
    detail: str  # of a failure: the leaf, the row, expected and got; of a skip: why


def passed(name: str, detail: str) -> CheckResult:
    """Returns a ✓, with what was looked at."""
    return CheckResult(name=name, status="pass", detail=detail)


def failed(name: str, detail: str) -> CheckResult:
    """Returns a ✗, with the leaf, the row, expected and got."""
    return CheckResult(name=name, status="fail", detail=detail)


def skipped(name: str, reason: str) -> CheckResult:
    """Returns a –: there is nothing to prove, or nothing to prove it with."""
    return CheckResult(name=name, status="skip", detail=reason)


def judged(name: str, failure: str | None, detail: str) -> CheckResult:
    """Returns a ✗ if there is a failure to tell of, and otherwise a ✓ with `detail`."""
    return passed(name, detail) if failure is None else failed(name, failure)


def first_difference(
    expected: PyTree,
    got: PyTree,
    *,
    what: str,
    axes: tuple[str, ...],
    tolerance: float = 0.0,
    mask: np.ndarray | None = None,
) -> str | None:
    """Returns where two pytrees of equal structure first differ, in words; None if nowhere.

    Args:
        expected: of arrays.
        got: of arrays of the same shapes.
        what: the pytree's name, which a leaf's path follows.
        axes: names of the leading axes, such as `("row", "env")`.
        tolerance: absolute, and relative to the expected number.
        mask: over the first axes; where it is False nothing is compared.
    """
    expected_leaves = jax.tree_util.tree_leaves_with_path(as_numpy(expected))
    for (path, left), right in zip(expected_leaves, jax.tree.leaves(as_numpy(got)), strict=True):
        differs = _differs(left, right, tolerance)
        if mask is not None:
            differs &= mask.reshape(*mask.shape, *(1,) * (differs.ndim - mask.ndim))
        if differs.any():
            index = tuple(int(i) for i in np.argwhere(differs)[0])
            place = [f"{axis} {i}" for axis, i in zip(axes, index, strict=False)]
            rest = f"[{','.join(map(str, index[len(axes) :]))}]" if index[len(axes) :] else ""
            return (
                f"{leaf_name(what, path)}{rest}, {', '.join(place)}: expected {left[index]},"
                f" got {right[index]}"
            )
    return None


def _differs(left: np.ndarray, right: np.ndarray, tolerance: float) -> np.ndarray:
    if np.issubdtype(left.dtype, np.floating):
        return ~np.isclose(left, right, rtol=tolerance, atol=tolerance, equal_nan=True)
    return np.asarray(left != right)


def leaf_name(what: str, path: tuple) -> str:
    """Returns `what.path.of.the.leaf`."""
    return ".".join(
        part for part in (what, jax.tree_util.keystr(path, simple=True, separator=".")) if part
    )


def as_numpy(tree: PyTree) -> PyTree:
    """Returns the leaves in host memory, random keys as their data."""
    return jax.tree.map(lambda leaf: np.asarray(jax.device_get(without_key(leaf))), tree)


def is_key(leaf: Any) -> bool:
    """Whether a leaf is an array of typed random keys."""
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def without_key(leaf: Any) -> Any:
    """Returns an array of typed random keys as its data, and anything else as it is."""
    return jax.random.key_data(leaf) if is_key(leaf) else leaf
