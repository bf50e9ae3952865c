"""The hosts of a config, and the functions of hosts on a single one."""

import os
import re

import pytest

from sebulba.config.loading import load_config
from sebulba.config.schema import DistributedConfig
from sebulba.errors import ConfigError
from sebulba.hosts import connection as hosts
from sebulba.hosts.joining import has_lock
from sebulba.hosts.rendezvous import BIND_VARIABLE, TOKEN_VARIABLE
from sebulba.storage.lock import take_lock
from sebulba.storage.names import LOCK
from tests.hosts.processes import free_port

MANUAL = (
    "--distributed.mode=manual",
    "--distributed.coordinator=127.0.0.1:1234",
    "--distributed.num-processes=2",
    "--distributed.process-id=1",
)


def test_a_manual_configuration_is_read():
    distributed = load_config(None, MANUAL).distributed
    assert (distributed.coordinator, distributed.process_id) == ("127.0.0.1:1234", 1)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (MANUAL[:3], "distributed.process_id: expected a value"),
        (
            ("--distributed.mode=off", *MANUAL[1:]),
            "only used with distributed.mode: manual",
        ),
        (
            (*MANUAL, "--distributed.process-id=2"),
            "expected less than distributed.num_processes, which is 2",
        ),
        ((*MANUAL, "--distributed.coordinator=here"), "expected host:port, got 'here'"),
        ((*MANUAL, "--distributed.heartbeat-timeout-s=0"), "expected int ≥ 1, got 0"),
        (("--distributed.mode=on",), "expected 'off' | auto | manual"),
    ],
)
def test_an_impossible_configuration_is_an_error(flags, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_config(None, flags)


def test_auto_without_a_cluster_is_an_error(monkeypatch):
    monkeypatch.setattr("jax._src.xla_bridge.backends_are_initialized", lambda: False)
    monkeypatch.setattr("jax._src.clusters.ClusterEnv._cluster_types", [])
    with pytest.raises(ConfigError, match="auto expects Slurm, Open MPI, Kubernetes or a TPU pod"):
        hosts.connect(DistributedConfig(mode="auto"))


def test_a_process_takes_every_visible_device(monkeypatch):
    arguments = {}
    monkeypatch.setattr("jax.distributed.initialize", lambda **kwargs: arguments.update(kwargs))
    monkeypatch.delenv("JAX_LOCAL_DEVICE_IDS", raising=False)
    hosts.connect(DistributedConfig(mode="auto"))
    assert arguments["local_device_ids"] == []
    hosts.connect(DistributedConfig(mode="auto", local_devices=(0, 2)))
    assert arguments["local_device_ids"] == [0, 2]


@pytest.fixture
def initialized(monkeypatch):
    """Returns a function that connects process 0 of one; it returns what JAX would get."""
    arguments = {}
    monkeypatch.setattr("jax.distributed.initialize", lambda **kwargs: arguments.update(kwargs))
    monkeypatch.setattr(hosts, "set_num_cpu_threads", lambda num_devices: None)
    monkeypatch.setattr(hosts, "_exit_on_abort", lambda code, describe: None)
    monkeypatch.delenv(BIND_VARIABLE, raising=False)
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)

    def connect(coordinator):
        hosts.connect(DistributedConfig(coordinator=coordinator, num_processes=1, process_id=0))
        return arguments

    return connect


def test_jax_listens_where_process_0_waited_for_the_others(initialized, monkeypatch):
    port = free_port()
    assert initialized(f"localhost:{port}")["coordinator_bind_address"] == f"127.0.0.1:{port}"
    monkeypatch.setenv(BIND_VARIABLE, f"0.0.0.0:{port}")
    assert initialized(f"127.0.0.1:{port}")["coordinator_bind_address"] == f"0.0.0.0:{port}"
    monkeypatch.setenv(BIND_VARIABLE, "here")
    with pytest.raises(ConfigError, match=f"{BIND_VARIABLE}: expected host:port, .* got 'here'"):
        initialized(f"127.0.0.1:{port}")


@pytest.mark.parametrize("token", ["", "a secret"])
def test_process_0_says_when_the_processes_share_no_token(token, initialized, monkeypatch, capsys):
    given = {}

    def wait(address, *, token, **others):
        given["token"] = token
        return address

    monkeypatch.setattr(hosts, "wait_for_processes", wait)
    monkeypatch.setenv(TOKEN_VARIABLE, token)
    initialized("127.0.0.1:1234")
    assert given == {"token": token}
    assert TOKEN_VARIABLE not in os.environ  # no environment's process inherits it
    said = capsys.readouterr().err
    assert said.startswith(f"sebulba: {TOKEN_VARIABLE} is not set") == (not token)
    assert token or "127.0.0.1:1234" in said


def test_a_single_host_gathers_only_its_own_text():
    assert not hosts.are_several()
    assert hosts.is_first()
    assert hosts.gather_texts("a") == ["a"]
    hosts.check_equal({"the config": "a"})


def test_a_directory_that_hosts_share_has_the_lock_of_the_first(tmp_path):
    assert not has_lock(tmp_path / "none", "{}", within_s=0.0)
    lock = take_lock(tmp_path, on_message=print)
    content = (tmp_path / LOCK).read_text()
    assert has_lock(tmp_path, content, within_s=0.0)
    lock.release()
    assert not has_lock(tmp_path, content, within_s=0.0)
    other = take_lock(tmp_path, on_message=print)
    assert not has_lock(tmp_path, content, within_s=0.0)
    other.release()
