"""Opponents that search Connect Four, for `env.options.opponent` of the suite `pgx`.

    python -m sebulba.evaluate RUN_DIR --env.options.opponent benchmarks.connect_four:search_6

Each sees the wins of as many moves ahead as its name says, takes the fastest win and puts off a
loss, and plays one of the best moves at random. It searches in Python, a game at a time.
"""

import functools
import random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_COLUMNS, _ROWS = 7, 6
_COLUMN = _ROWS + 1  # bits of a column, of which the uppermost is always empty
_CENTRE_FIRST = sorted(range(_COLUMNS), key=lambda column: abs(column - _COLUMNS // 2))
_BOTTOM = [1 << _COLUMN * column for column in range(_COLUMNS)]
_TOP = [bottom << _ROWS - 1 for bottom in _BOTTOM]


def bits_of(stones: np.ndarray) -> int:
    """Return the stones of a player, `[6, 7]` bool from above, as bits."""
    rows, columns = np.nonzero(stones)
    return sum(1 << int(_COLUMN * c + _ROWS - 1 - r) for r, c in zip(rows, columns, strict=True))


def has_four(stones: int) -> bool:
    """Return whether four stones of a player are in a line."""
    for by in (1, _COLUMN - 1, _COLUMN, _COLUMN + 1):
        pairs = stones & stones >> by
        if pairs & pairs >> 2 * by:
            return True
    return False


def legal_columns(taken: int) -> list[int]:
    """Return the columns that are not full, those in the middle first."""
    return [column for column in _CENTRE_FIRST if not taken & _TOP[column]]


def value(own: int, other: int, depth: int, alpha: int, beta: int) -> int:
    """Return the value of a position for the player to move, by alpha-beta search.

    Args:
        own: the stones of the player to move.
        other: those of the other, which have no four in a line.
        depth: how many moves are looked at; 0: the value is 0.
        alpha: values below it are all alike.
        beta: values above it are all alike.

    Returns:
        0 if nobody wins; positive if the player does, the more the faster; else negative.
    """
    columns, taken = legal_columns(own | other), own | other
    if depth == 0 or not columns:
        return 0
    after = [own | (taken + _BOTTOM[column]) & ~taken for column in columns]
    if any(map(has_four, after)):
        return depth
    for stones in after:
        alpha = max(alpha, -value(other, stones, depth - 1, -beta, -alpha))
        if alpha >= beta:
            break
    return alpha


def best_columns(own: int, other: int, depth: int) -> list[int]:
    """Return the columns with the best value, of a game that has not ended."""
    taken, values = own | other, {}
    for column in legal_columns(taken):
        after = own | (taken + _BOTTOM[column]) & ~taken
        won = has_four(after)
        values[column] = depth if won else -value(other, after, depth - 1, -depth, depth)
    return [column for column in values if values[column] == max(values.values())]


def search(depth: int, state: Any, key: jax.Array) -> jax.Array:
    """Return the move of a player that looks `depth` moves ahead; an opponent of `pgx`."""

    def choose(observation: np.ndarray, seed: np.ndarray) -> np.ndarray:
        own, other = (bits_of(np.asarray(observation)[..., i]) for i in range(2))
        columns = [0] if has_four(other) else best_columns(own, other, depth)
        return np.array(random.Random(int(seed)).choice(columns or [0]), np.int32)

    move = jax.ShapeDtypeStruct((), jnp.int32)
    seed = jax.random.bits(key)
    return jax.pure_callback(choose, move, state.observation, seed, vmap_method="sequential")


search_2 = functools.partial(search, 2)
search_4 = functools.partial(search, 4)
search_6 = functools.partial(search, 6)
