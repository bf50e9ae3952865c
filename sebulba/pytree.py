"""Frozen dataclasses that are JAX pytrees, their text, and pytrees as plain arrays."""

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeVar, dataclass_transform

import jax

T = TypeVar("T")
_KEY_IMPLEMENTATIONS = ("threefry2x32", "rbg", "unsafe_rbg")


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


def leaf_name(path: tuple, tree: str = "") -> str:
    """Return the name of a leaf, `observation.image`, after that of its tree, if it has one.

    Empty if a tree without a name is the leaf.
    """
    name = jax.tree_util.keystr(path, simple=True, separator=".")
    return ".".join(part for part in (tree, name) if part)


def is_key(leaf: Any) -> bool:
    """Return whether a leaf holds typed PRNG keys."""
    return jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def without_key(leaf: Any) -> Any:
    """Return the data of an array of typed PRNG keys, and any other leaf unchanged."""
    return jax.random.key_data(leaf) if is_key(leaf) else leaf


def key_implementation(dtype: Any) -> str:
    """Return the name of the generator that typed PRNG keys of a dtype are for."""
    for name in _KEY_IMPLEMENTATIONS:
        if jax.eval_shape(lambda name=name: jax.random.key(0, impl=name)).dtype == dtype:
            return name
    raise ValueError(f"expected keys of one of {', '.join(_KEY_IMPLEMENTATIONS)}, got {dtype}")


def to_arrays(tree: Any) -> list[Any]:
    """Return the leaves as arrays that any process can take: of typed keys, the key data."""
    return list(map(without_key, jax.tree.leaves(tree)))


def from_arrays(arrays: Sequence[Any], *, like: Any) -> Any:
    """Return the tree of `to_arrays`.

    Args:
        arrays: the leaves.
        like: a tree of the same structure, with typed keys, or their shapes, where it has them.
    """
    expected, structure = jax.tree.flatten(like)
    leaves = [
        jax.random.wrap_key_data(leaf, impl=key_implementation(each.dtype))
        if is_key(each)
        else leaf
        for leaf, each in zip(arrays, expected, strict=True)
    ]
    return jax.tree.unflatten(structure, leaves)


def _describe_leaf(leaf: Any) -> str:
    if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
        return repr(leaf)
    shape = ",".join(str(size) for size in leaf.shape)
    is_array = isinstance(leaf, jax.Array) and not isinstance(leaf, jax.core.Tracer)
    return f"{leaf.dtype}[{shape}]{' (deleted)' if is_array and leaf.is_deleted() else ''}"
