"""Scans over the rows of a trajectory, each of which computes little."""

import functools
from collections.abc import Callable
from typing import TypeVar

from jax import lax

from sebulba.types import PyTree

_Carry = TypeVar("_Carry", bound=PyTree)

_ROWS_PER_TURN = 16


def scan_rows(
    function: Callable[[_Carry, PyTree], tuple[_Carry, PyTree]],
    init: _Carry,
    rows: PyTree,
    *,
    reverse: bool = False,
) -> tuple[_Carry, PyTree]:
    """Return `lax.scan(function, init, rows)`, where `function` is a few operations per entry.

    An accelerator takes longer to start the kernels of a turn than to compute them, so there 16
    rows are a turn: 35 kernels instead of 384 for the advantages of 128 rows on a GPU. A CPU
    starts kernels at no cost, and XLA computes a row again for each of the later ones of its turn:
    for statistics of 2,048 episodes over 128 rows, 16 rows a turn take 5.4 ms, and one 0.17 ms.

    Args:
        function: from a carry and a row to the next carry and a result.
        init: the carry before the first row.
        rows: leaves `[T, ...]`.
        reverse: from the last row to the first.
    """
    scan = functools.partial(lax.scan, function, reverse=reverse)
    return lax.platform_dependent(
        init, rows, cpu=scan, default=functools.partial(scan, unroll=_ROWS_PER_TURN)
    )
