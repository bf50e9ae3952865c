"""The scaling model on hand-fed times."""

import dataclasses
import pathlib

import pytest

from benchmarks.scaling_model_learning import measure_learning
from benchmarks.scaling_model_plan import describe_plan
from benchmarks.scaling_model_prediction import (
    Host,
    Network,
    all_reduce_s,
    bend,
    scale,
    scale_locally,
)
from sebulba.config import CheckpointConfig
from sebulba.config.loading import load_config
from sebulba.tools.plan.model import Cost, Parts

NETWORK = Network(latency_s=1e-5, bytes_per_s=1e9)
WAITING = str(pathlib.Path(__file__).parents[2] / "benchmarks" / "waiting.yaml")
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
    (alone,) = scale(make_host(act_s=0.04, update_s=0.02), NETWORK, [1])
    assert alone.env_steps_per_s == pytest.approx(1000 / 0.02)
    assert alone.efficiency == 1.0


def test_all_reduce_is_the_faster_of_ring_and_tree():
    # Many bytes on two hosts: each sends half of them there and back.
    assert all_reduce_s(2, 10**8, NETWORK) == pytest.approx(2e-5 + 0.1)
    # Few bytes on many hosts: the tree's 8 levels, not the ring's 255 hops.
    assert all_reduce_s(256, 8, NETWORK) == pytest.approx(2 * 8 * 1e-5, rel=1e-3)


def test_waiting_is_hidden_while_actors_are_the_bottleneck():
    host = make_host(act_s=0.1, update_s=0.02, deviation_s=0.001)
    points = scale(host, NETWORK, [1, 2, 16, 4096])
    assert [each.bound for each in points] == ["actors", "actors", "actors", "learner"]
    assert points[2].env_steps_per_s == pytest.approx(16 * points[0].env_steps_per_s)
    assert bend(points) is None
    learner_bound = make_host(act_s=0.01, update_s=0.02, deviation_s=0.002)
    assert bend(scale(learner_bound, NETWORK, [1, 2, 4, 256])) == 2


def test_local_processes_share_the_cores():
    host = make_host(act_s=0.01, update_s=0.001, core_s=0.04)
    learning = {
        1: Cost(wall_s=0.001, core_s=0.0),
        2: Cost(wall_s=0.001, core_s=0.04),
        4: Cost(wall_s=0.5, core_s=0.0),
    }
    one, two, four = scale_locally(host, learning, num_machine_cores=host.num_cores)
    assert (one.bound, two.bound, four.bound) == ("cores", "cores", "learner")
    # 40 ms of CPU to act; two processes spend as much again on learning, on half of the cores.
    assert one.env_steps_per_s == pytest.approx(1000 * 8 / 0.04)
    assert two.env_steps_per_s == pytest.approx(one.env_steps_per_s / 2)
    assert four.env_steps_per_s == pytest.approx(4 * 1000 / 0.5)


def test_exchanging_with_other_hosts_takes_time_of_the_cores():
    host = dataclasses.replace(
        make_host(act_s=0.01, update_s=0.001, core_s=0.04), exchange_core_s=0.01
    )
    one, two = scale(host, NETWORK, [1, 2])
    assert (one.bound, two.bound) == ("cores", "cores")
    assert (one.efficiency, two.efficiency) == (1.0, pytest.approx(0.8))


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
    # The tree: 16 messages of 10 µs, and 1 MB there and back at 1 GB/s; 8 more for what hosts tell.
    assert plan["all-reduce"].startswith("1,000,000 bytes, 2.160 ms, 1 in a learner cycle; 0.7")
    assert plan["learner cycle"] == "22.24 ms; of one host alone 20.00 ms"
    assert plan["env steps/s"].startswith("11,510,791; 0.90 of 256 times one host's 50,000")
    assert plan["bend"] == "below 90% of linear from 256 hosts on"
    assert plan["deque of a host"] == "4 trajectories, 4.0 MiB"
    assert plan["checkpoint"].startswith("3.0 MiB of a host's learner, 768.0 MiB of all, 2 kept")
    assert plan["whole run"].startswith("25,600,000 env steps in 2 s")


@pytest.mark.slow
def test_learner_cycles_of_several_hosts_are_measured():
    for num_hosts in (1, 2):
        learning = measure_learning([WAITING], num_hosts=num_hosts, cycles=10)
        assert learning.wall_s > 0 and learning.core_s > 0 and learning.deviation_s > 0
