"""Frozen dataclasses that JAX treats as pytrees and that print one line a leaf."""

import dataclasses
from typing import Any, TypeVar, dataclass_transform

import jax

T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def pytree_dataclass(cls: type[T]) -> type[T]:
    """Makes `cls` a frozen, keyword-only dataclass registered as a pytree, every field a child."""
    setattr(cls, "__repr__", describe)  # noqa: B010 - mypy takes no assignment to a method
    cls = dataclasses.dataclass(frozen=True, kw_only=True, repr=False, eq=False)(cls)
    return jax.tree_util.register_dataclass(cls)


def describe(tree: Any) -> str:
    """Returns one line a leaf, `path: dtype[shape]`; deleted and traced arrays print as well."""
    lines = [
        f"  {jax.tree_util.keystr(path, simple=True, separator='.')}: {_describe_leaf(leaf)}"
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    ]
    return "\n".join([f"{type(tree).__name__}(", *lines, ")"])


def _describe_leaf(leaf: Any) -> str:
    if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
        return repr(leaf)
    shape = ",".join(str(size) for size in leaf.shape)
    deleted = " (deleted)" if getattr(leaf, "is_deleted", bool)() else ""
    return f"{leaf.dtype}[{shape}]{deleted}"
