"""The scaling model on hand-fed times."""

import pytest

from benchmarks.scaling_model import Host, Network, all_reduce_s, bend, scale
from sebulba.planning.model import Cost, Parts

NETWORK = Network(latency_s=1e-5, bytes_per_s=1e9)
NOTHING = Cost(wall_s=0.0, core_s=0.0)


def make_host(*, act_s, update_s, deviation_s=0.0, core_s=0.0):
    parts = Parts(
        act=Cost(wall_s=act_s, core_s=core_s),
        environment=NOTHING,
        transfer=NOTHING,
        update=Cost(wall_s=update_s, core_s=0.0),
        env_steps=1000,
        trajectories_per_cycle=1,
    )
    return Host(
        parts=parts,
        num_actors=4,
        num_cores=8,
        gradient_bytes=1_000_000,
        updates_per_cycle=1.0,
        update_deviation_s=deviation_s,
    )


def test_one_host_waits_for_nobody():
    assert all_reduce_s(1, 10**9, NETWORK) == 0.0
    (alone,) = scale(make_host(act_s=0.04, update_s=0.02), NETWORK, [1], is_local=False)
    assert alone.env_steps_per_s == pytest.approx(1000 / 0.02)
    assert alone.efficiency == 1.0


def test_all_reduce_is_the_faster_of_ring_and_tree():
    # Large on two hosts: each sends its half there and back.
    assert all_reduce_s(2, 10**8, NETWORK) == pytest.approx(2e-5 + 0.1)
    # Small on many: the tree's 8 levels, not the ring's 255 hops.
    assert all_reduce_s(256, 8, NETWORK) == pytest.approx(2 * 8 * 1e-5, rel=1e-3)


def test_actors_that_bind_hide_the_wait_until_it_bends():
    host = make_host(act_s=0.1, update_s=0.02, deviation_s=0.001)
    points = scale(host, NETWORK, [1, 2, 16, 4096], is_local=False)
    assert [each.bound for each in points] == ["actors", "actors", "actors", "learner"]
    assert points[2].env_steps_per_s == pytest.approx(16 * points[0].env_steps_per_s)
    assert bend(points) is None
    learner_bound = make_host(act_s=0.01, update_s=0.02, deviation_s=0.002)
    assert bend(scale(learner_bound, NETWORK, [1, 2, 4, 256], is_local=False)) == 2


def test_local_processes_share_the_cores():
    host = make_host(act_s=0.01, update_s=0.001, core_s=0.04)
    one, two = scale(host, NETWORK, [1, 2], is_local=True)
    assert (one.bound, two.bound) == ("cores", "cores")
    assert two.env_steps_per_s == pytest.approx(one.env_steps_per_s)
