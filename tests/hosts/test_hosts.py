"""What a config says of hosts, and what a host alone does."""

import re

import pytest

from sebulba.config.loading import load_config
from sebulba.config.schema import DistributedConfig
from sebulba.errors import ConfigError
from sebulba.hosts import connection as hosts

PLACE = (
    "--distributed.mode=manual",
    "--distributed.coordinator=127.0.0.1:1234",
    "--distributed.num-processes=2",
    "--distributed.process-id=1",
)


def test_a_place_said_by_hand_is_read():
    distributed = load_config(None, PLACE).distributed
    assert (distributed.coordinator, distributed.process_id) == ("127.0.0.1:1234", 1)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (PLACE[:3], "distributed.process_id: expected a value"),
        (("--distributed.mode=off", *PLACE[1:]), "expected null unless distributed.mode is manual"),
        ((*PLACE, "--distributed.process-id=2"), "expected less than the 2"),
        ((*PLACE, "--distributed.coordinator=here"), "expected host:port, got 'here'"),
        ((*PLACE, "--distributed.heartbeat-timeout-s=0"), "expected at least 1"),
        (("--distributed.mode=on",), "expected 'off' | auto | manual"),
    ],
)
def test_a_place_that_cannot_be_is_an_error(flags, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_config(None, flags)


def test_auto_without_a_cluster_is_an_error(monkeypatch):
    monkeypatch.setattr("jax._src.xla_bridge.backends_are_initialized", lambda: False)
    monkeypatch.setattr("jax._src.clusters.ClusterEnv._cluster_types", [])
    with pytest.raises(ConfigError, match="auto expects Slurm, Open MPI, Kubernetes or a TPU pod"):
        hosts.connect(DistributedConfig(mode="auto"))


def test_all_devices_that_a_process_sees_are_its_own(monkeypatch):
    told = {}
    monkeypatch.setattr("jax.distributed.initialize", lambda **kwargs: told.update(kwargs))
    monkeypatch.delenv("JAX_LOCAL_DEVICE_IDS", raising=False)
    hosts.connect(DistributedConfig(mode="auto"))
    assert told["local_device_ids"] == []
    hosts.connect(DistributedConfig(mode="auto", local_devices=(0, 2)))
    assert told["local_device_ids"] == [0, 2]


def test_a_host_alone_agrees_with_itself():
    assert not hosts.are_several()
    assert hosts.is_first()
    assert hosts.gather_texts("a") == ["a"]
    hosts.check_equal({"the config": "a"})
