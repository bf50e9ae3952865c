"""What crosses between a learner's host and a process that acts."""

import jax
import pytest

from sebulba.remote import wire
from tests.disturbances import collected_of
from tests.ring.test_frames_once import make_config, stacked
from tests.ring_parts import assert_equal_bits
from tests.rings import close, keep_observations, make_ring


def crossing(env, monkeypatch=None):
    """Return what a ring's actor collected, and the bytes of its trajectory on the wire."""
    if monkeypatch is not None:
        keep_observations(monkeypatch)
    ring = make_ring(make_config(env, threads=1))
    *_, (*_, collected) = collected_of(ring, 3)
    tally, carry, trajectory = wire.pack_collected(collected)
    like = jax.eval_shape(lambda: collected)
    assert_equal_bits(wire.unpack_collected(tally, carry, trajectory, like=like), collected)
    close(ring)
    return sum(each.nbytes for each in trajectory)


@pytest.mark.parametrize("fill", ["repeat", "zeros"])
def test_frames_of_stacks_cross_once_and_the_carry_has_the_stacks_of_its_row(fill, monkeypatch):
    env = stacked(fill=fill, lives=True)
    once, stacks = crossing(env), crossing(env, monkeypatch)
    # 6 rows of 4 environments with 2 numbers in place of 6; the 2 frames before the first row; a
    # flag for each row.
    assert stacks - once == 4 * (6 * 4 * 4 - 2 * 2 * 4 - 6)
