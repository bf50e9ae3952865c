"""The searching opponent of Connect Four."""

import random

import numpy as np
import pytest

from benchmarks import connect_four as game


def stones(text):
    """Return the stones of `x` and `o`, from rows drawn from above."""
    rows = text.split()
    board = np.array([list(row) for row in ["......."] * (6 - len(rows)) + rows])
    return game.bits_of(board == "x"), game.bits_of(board == "o")


def drop(own, other, column):
    taken = own | other
    return own | (taken + (1 << 7 * column)) & ~taken


def minimax(own, other, depth):
    columns = game.legal_columns(own | other)
    if depth == 0 or not columns:
        return 0
    after = [drop(own, other, column) for column in columns]
    return max(depth if game.has_four(new) else -minimax(other, new, depth - 1) for new in after)


@pytest.mark.parametrize(
    ("board", "depth", "columns"),
    [
        ("ooo.... xxx....", 1, {3}),
        ("x...... ooo...x", 2, {3}),  # a threat has to be blocked
        ("..oo... ..xx...", 1, set(range(7))),  # no win in one
        ("....... ..xx...", 3, {1, 4}),  # three in the middle with both ends free
        ("...x... ...x... ...x...", 1, {3}),
    ],
)
def test_the_search_finds_the_best_columns(board, depth, columns):
    assert set(game.best_columns(*stones(board), depth)) == columns


def test_lines_do_not_go_around_the_board():
    assert not game.has_four(sum(1 << bit for bit in (4, 5, 7, 8)))  # top and next bottom
    assert game.has_four(stones("x...... .x..... ..x.... ...x...")[0])
    assert game.has_four(stones("...x... ..x.... .x..... x......")[0])


def test_values_are_those_of_a_search_without_pruning():
    rng = random.Random(0)
    for _ in range(30):
        own = other = 0
        for _ in range(rng.randrange(4, 24)):
            new = drop(own, other, rng.choice(game.legal_columns(own | other)))
            if game.has_four(new):
                break
            own, other = other, new
        assert game.value(own, other, 4, -4, 4) == minimax(own, other, 4)
