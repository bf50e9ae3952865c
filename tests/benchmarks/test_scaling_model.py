"""The scaling model on hand-fed times."""

import dataclasses
import math

import pytest

from benchmarks.scaling_model_network import measure_loopback, network_of
from benchmarks.scaling_model_plan import describe_plan
from benchmarks.scaling_model_prediction import Host, Network, all_reduce_s, bend, scale
from sebulba.config import CheckpointConfig
from sebulba.config.loading import load_config
from sebulba.tools.plan.model import Cost, Parts

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
        num_envs=50,
        queue_slots=4,
        trajectory_bytes=2**20,
        state_bytes=3 * 2**20,
    )


def test_one_host_waits_for_no_other():
    assert all_reduce_s(1, 10**9, NETWORK) == 0.0
    (alone,) = scale(make_host(act_s=0.04, update_s=0.02), NETWORK, [1], is_local=False)
    assert alone.env_steps_per_s == pytest.approx(1000 / 0.02)
    assert alone.efficiency == 1.0


def test_all_reduce_is_the_faster_of_ring_and_tree():
    # Many bytes on two hosts: each sends half of them there and back.
    assert all_reduce_s(2, 10**8, NETWORK) == pytest.approx(2e-5 + 0.1)
    # Few bytes on many hosts: the tree's 8 levels, not the ring's 255 hops.
    assert all_reduce_s(256, 8, NETWORK) == pytest.approx(2 * 8 * 1e-5, rel=1e-3)


def test_waiting_is_hidden_while_actors_are_the_bottleneck():
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


def test_a_plan_has_the_needs_and_the_speed_of_all_hosts():
    host = make_host(act_s=0.01, update_s=0.02, deviation_s=0.0)
    config = dataclasses.replace(
        load_config(None, ["--run.total-env-steps", "25600000"]),
        checkpoint=CheckpointConfig(interval_s=60.0, keep=2),
    )
    rows = describe_plan(host, NETWORK, config, num_hosts=256, all_hosts=[1, 64, 1024])
    plan = dict(line.strip("| ").split(" | ") for line in rows.splitlines()[2:])
    assert plan["actors"] == "4 a host, 1,024 of all"
    assert plan["environments"] == "200 a host, 51,200 of all"
    # The tree: 16 messages of 10 µs, and 1 MB there and back at 1 GB/s.
    assert plan["all-reduce"] == "1,000,000 bytes, 2.160 ms, 1 in a learner cycle"
    assert plan["learner cycle"] == "22.16 ms; of one host alone 20.00 ms"
    assert plan["env steps/s"].startswith("11,552,347; 0.90 of 256 times one host's 50,000")
    assert plan["bend"] == "none up to 1024 hosts"
    assert plan["deque of a host"] == "4 trajectories, 4.0 MiB"
    assert plan["checkpoint"].startswith("3.0 MiB of a host's learner, 768.0 MiB of all, 2 kept")
    assert plan["whole run"].startswith("25,600,000 env steps in 2 s")


def test_a_network_is_inferred_from_a_small_and_a_large_all_reduce():
    network = network_of(2e-4, 2e-4 + 1e-3, 10**6)
    assert (network.latency_s, network.bytes_per_s) == pytest.approx((1e-4, 1e9))
    assert all_reduce_s(2, 10**6, network) == pytest.approx(2e-4 + 1e-3)
    assert network_of(2e-4, 1e-4, 10**6).bytes_per_s == math.inf


@pytest.mark.slow
def test_the_loopback_is_measured():
    network = measure_loopback(100_000)
    assert 0 < network.latency_s < 1
    assert network.bytes_per_s > 0
