"""The checksum and the sketch of arrays.

A sketch is the norm of a leaf, and its projections on a few fixed vectors of signs. The square of
the difference of two projections is, on average over such vectors, the square of the norm of the
difference of the leaves (Achlioptas 2003, doi:10.1016/S0022-0000(03)00025-4).
"""

import itertools
import math
import zlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from sebulba.pytree import without_key
from sebulba.storage.checkpoints.manifest import flatten
from sebulba.storage.checksums import LeafSum
from sebulba.types import PyTree

_NUM_PROJECTIONS = 3
# A longer leaf is cut into pieces of this length, which are added up: so the signs repeat.
_NUM_SIGNS = 4096
_SIGNS = np.random.default_rng(20260101).choice([-1.0, 1.0], (_NUM_PROJECTIONS, _NUM_SIGNS))


class Checksums:
    """Computes the leaves of a row; remembers the names of the leaves of a structure."""

    def __init__(self) -> None:
        self._names: dict[Any, list[str]] = {}

    def of(self, part: str, trees: Sequence[PyTree]) -> dict[str, LeafSum]:
        """Return the checksum of each leaf over trees of the same structure, one after another.

        Args:
            part: the first word of the leaves' names.
            trees: of JAX arrays, on any devices of this host, or NumPy arrays.
        """
        flat, structures = zip(*map(jax.tree.flatten, trees), strict=True)
        if structures[0] not in self._names:
            self._names[structures[0]] = [f"{part}.{name}" for name in flatten(trees[0])]
        leaves = [[without_key(leaf) for leaf in of_name] for of_name in zip(*flat, strict=True)]
        for leaf in itertools.chain(*leaves):
            if isinstance(leaf, jax.Array):
                leaf.copy_to_host_async()  # all of them before the first is waited for
        # `jax.device_get` takes ten times as long on a CPU.
        return {
            name: leaf_sum([np.asarray(leaf) for leaf in of_name])
            for name, of_name in zip(self._names[structures[0]], leaves, strict=True)
        }


def leaf_sum(arrays: Sequence[np.ndarray]) -> LeafSum:
    """Return the checksum of arrays of the same dtype, one after another."""
    crc, square, projections = 0, 0.0, np.zeros(_NUM_PROJECTIONS)
    has_floats = jax.dtypes.issubdtype(arrays[0].dtype, np.floating)
    for array in arrays:
        flat = np.ascontiguousarray(array).reshape(-1)
        crc = zlib.crc32(flat.view(np.uint8).data, crc)
        if has_floats:
            # The float64 of a smaller dtype, such as bfloat16, has its exact value.
            with np.errstate(all="ignore"):
                floats = flat if flat.dtype == np.float32 else flat.astype(np.float64)
                square += float(np.vdot(floats, floats))
                folded = _folded(floats)
                projections += _SIGNS[:, : len(folded)] @ folded
    if not has_floats:
        return LeafSum(crc32=f"{crc:08x}")
    norm, *finite = [x if math.isfinite(x) else None for x in (square, *projections.tolist())]
    return LeafSum(
        crc32=f"{crc:08x}",
        norm=None if norm is None else math.sqrt(norm),
        projections=tuple(finite),
    )


def _folded(flat: np.ndarray) -> np.ndarray:
    """Return the sum of the pieces of an array, float64 `[at most _NUM_SIGNS]`."""
    num_pieces, num_left = divmod(len(flat), _NUM_SIGNS)
    if num_pieces == 0:
        return flat.astype(np.float64)
    pieces = flat[: num_pieces * _NUM_SIGNS].reshape(num_pieces, _NUM_SIGNS)
    folded = pieces.sum(axis=0, dtype=np.float64)
    folded[:num_left] += flat[num_pieces * _NUM_SIGNS :]
    return folded
