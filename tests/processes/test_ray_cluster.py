"""What Ray is asked for when a command joins a cluster, or starts one."""

import pytest

from sebulba.errors import ConfigError
from sebulba.processes.ray_cluster import ray_cluster

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
        raise ConnectionError("not in a test")

    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(ConfigError, match="not in a test"), ray_cluster(num_cpus=64, wanted=""):
        raise AssertionError("There is no cluster.")
    # Without `local`, Ray would join a cluster that somebody else runs on this machine.
    assert asked[0]["address"] == expected
    assert ("num_cpus" in asked[0]) == (expected == "local")
