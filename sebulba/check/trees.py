"""Parts of pytrees: the names of leaves, one leaf changed, all in one vector, and a replay."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from sebulba.check.result import as_numpy
from sebulba.pytree import leaf_name
from sebulba.toolkit.replay import ReplayState
from sebulba.types import Array, PyTree


def leaf_names(what: str, tree: PyTree) -> list[str]:
    """Return the names of all leaves, each beginning with `what`."""
    return [leaf_name(path, what) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]


def is_replay(node: Any) -> bool:
    """Return whether a node of an experience is a replay of `sebulba.toolkit`."""
    return isinstance(node, ReplayState)


def with_leaf(tree: PyTree, index: int, change: Callable[[Array], Array]) -> PyTree:
    """Return a pytree with another value of the leaf of this number."""
    leaves, structure = jax.tree.flatten(tree)
    leaves[index] = change(leaves[index])
    return jax.tree.unflatten(structure, leaves)


def flat(tree: PyTree) -> np.ndarray:
    """Return the numbers of all leaves in one vector, float64."""
    leaves = jax.tree.leaves(as_numpy(tree))
    return np.concatenate([leaf.reshape(-1).astype(np.float64) for leaf in leaves])
