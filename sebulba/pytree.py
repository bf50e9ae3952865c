"""Frozen dataclasses that are JAX pytrees and print one line per leaf."""

import dataclasses
from typing import Any, TypeVar, dataclass_transform

import jax

T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def pytree_dataclass(cls: type[T]) -> type[T]:
    """Make `cls` a frozen, keyword-only dataclass and a pytree whose children are its fields."""
    setattr(cls, "__repr__", describe)  # noqa: B010 - mypy takes no assignment to a method
    cls = dataclasses.dataclass(frozen=True, kw_only=True, repr=False, eq=False)(cls)
    return jax.tree_util.register_dataclass(cls)


def describe(tree: Any) -> str:
    """Return one line per leaf, `path: dtype[shape]`; works for deleted and traced arrays."""
    lines = [
        f"  {leaf_name(path)}: {_describe_leaf(leaf)}"
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    ]
    return "\n".join([f"{type(tree).__name__}(", *lines, ")"])


def describe_inline(tree: Any) -> str:
    """Return all leaves in one line: `float32[2,4]`, or `image: uint8[2,9,9], vector: int32[2]`."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    if not leaves:
        return repr(tree)
    return ", ".join(
        f"{leaf_name(path)}: {_describe_leaf(leaf)}" if path else _describe_leaf(leaf)
        for path, leaf in leaves
    )


def leaf_name(path: tuple) -> str:
    """Return the name of a leaf, `observation.image`; empty if the tree is the leaf."""
    return jax.tree_util.keystr(path, simple=True, separator=".")


def _describe_leaf(leaf: Any) -> str:
    if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
        return repr(leaf)
    shape = ",".join(str(size) for size in leaf.shape)
    is_array = isinstance(leaf, jax.Array) and not isinstance(leaf, jax.core.Tracer)
    return f"{leaf.dtype}[{shape}]{' (deleted)' if is_array and leaf.is_deleted() else ''}"
