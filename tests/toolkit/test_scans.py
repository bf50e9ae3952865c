"""Scans with several rows a turn, as off the CPU, give what scans row by row give."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sebulba.toolkit import scans
from sebulba.toolkit.scans import scan_rows
from tests.platforms import off_the_cpu


@pytest.mark.parametrize("length", [1, 16, 21])
@pytest.mark.parametrize("reverse", [False, True])
def test_rows_of_a_turn_follow_each_other(length, reverse, monkeypatch):
    rows = jax.random.normal(jax.random.key(0), (2, length, 3))

    def step(total, row):
        total = row[0] + 0.9 * row[1] * total
        return total, total

    expected = jax.lax.scan(step, jnp.zeros(3), tuple(rows), reverse=reverse)
    off_the_cpu(monkeypatch)
    got = jax.jit(lambda rows: scan_rows(step, jnp.zeros(3), rows, reverse=reverse))(tuple(rows))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), got, expected)
    turns = str(jax.make_jaxpr(lambda rows: scan_rows(step, jnp.zeros(3), rows))(tuple(rows)))
    assert f"unroll={scans._ROWS_PER_TURN}" in turns
