"""Networks on many rows at a time, in chunks that fit the cache of a CPU."""

import math
from collections.abc import Callable

import jax
from jax import lax

from sebulba.types import PyTree

_MIN_ROWS = 2**15  # fewer are as fast at once
_MAX_CHUNK = 2**12


def map_rows(function: Callable[[PyTree], PyTree], rows: PyTree) -> PyTree:
    """Return `function(rows)`, of a function that treats each row alone.

    On a CPU, 32,768 rows and more are computed in chunks, and the hidden layers of each chunk a
    second time for its gradient: they stay in the cache, where those of all rows at once would be
    written to memory and read again, which takes longer and as much memory as there are rows. The
    result is the same but for rounding: a gradient is a sum over chunks of sums over their rows.

    Args:
        function: takes and returns trees of `[T, B, ...]`, each row of which depends on the same
            row of its argument only. Differentiable in what it closes over.
        rows: `[T, B, ...]`.
    """
    leading = jax.tree.leaves(rows)[0].shape[:2]
    num_rows = math.prod(leading)
    if num_rows < _MIN_ROWS:
        return function(rows)
    chunk = next(size for size in range(_MAX_CHUNK, 0, -1) if num_rows % size == 0)
    if chunk < _MAX_CHUNK // 4:
        return function(rows)

    def in_chunks(rows: PyTree) -> PyTree:
        chunks = jax.tree.map(lambda leaf: leaf.reshape(-1, 1, chunk, *leaf.shape[2:]), rows)
        results = lax.map(jax.checkpoint(function), chunks)
        return jax.tree.map(lambda leaf: leaf.reshape(*leading, *leaf.shape[3:]), results)

    return lax.platform_dependent(rows, cpu=in_chunks, default=function)
