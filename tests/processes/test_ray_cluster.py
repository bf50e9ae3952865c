"""What Ray is asked for when a command joins a cluster, or starts one."""

import pytest

from sebulba.errors import ConfigError
from sebulba.processes.ray_cluster import RayShare, ray_cluster, room_for

ray = pytest.importorskip("ray", reason="needs the extra ray")


@pytest.mark.parametrize(
    ("given", "expected"),
    [(None, "local"), ("", "local"), ("auto", "auto"), ("ray://x", "ray://x")],
)
def test_a_ray_is_started_here_unless_an_address_is_given(given, expected, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if given is not None:
        monkeypatch.setenv("RAY_ADDRESS", given)
    asked = []

    def init(**options):
        asked.append(options)
        raise ConnectionError("not in\n    a test")  # Ray's errors have several lines.

    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(ConfigError, match="not in a test"), ray_cluster(num_cpus=64, wanted=""):
        raise AssertionError("There is no cluster.")
    # Without `local`, Ray would join a cluster that somebody else runs on this machine.
    assert asked[0]["address"] == expected
    assert ("num_cpus" in asked[0]) == (expected == "local")


def nodes(*resources):
    return [{"Alive": True, "Resources": each} for each in resources]


@pytest.mark.parametrize(
    ("share", "expected"),
    [
        (RayShare(num_cpus=1), 12),
        (RayShare(num_cpus=3), 3),
        (RayShare(num_cpus=16), 0),
        (RayShare(num_cpus=1, num_gpus=1.0), 2),
        (RayShare(num_cpus=1, num_gpus=0.1), 8),
        (RayShare(num_cpus=1, num_gpus=4.0), 0),
    ],
)
def test_room_is_counted_on_each_machine_that_is_alive(share, expected, monkeypatch):
    dead = {"Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0}}
    here = nodes({"CPU": 8.0, "GPU": 2.0}, {"CPU": 4.0, "memory": 1e9}, {})
    monkeypatch.setattr(ray, "nodes", lambda: [*here, dead])
    assert room_for(share) == expected


def test_ten_tenths_of_a_gpu_are_one(monkeypatch):
    monkeypatch.setattr(ray, "nodes", lambda: nodes({"CPU": 16.0, "GPU": 1.0}))
    assert room_for(RayShare(num_cpus=1, num_gpus=0.1)) == 10
