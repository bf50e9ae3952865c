"""Runs on hosts that strangers can reach: who joins them, and what listens. Loopback only."""

import ipaddress
import os
import pathlib
import socket
import sys

import pytest

from tests.hosts.processes import CONFIG, ENDLESS, end_of, free_port, hosts, start, summaries
from tests.hosts.test_rendezvous import flood
from tests.subprocesses import pids_in_session, wait_for

NUM_CONNECTIONS = 10_000
# A process for each environment.
WORKERS = (
    *("--env.suite", "gymnasium", "--env.id", "CartPole-v1"),
    *("--env.options", "{vectorization_mode: async}"),
)
LISTENS = "0A"  # a state in /proc/net/tcp
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/net"),
]


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG)
    return path


def listening(process):
    """Return the addresses at which a process, or one that it has started, accepts connections."""
    own = set()
    for pid in pids_in_session(process.pid):
        for descriptor in pathlib.Path(f"/proc/{pid}/fd").iterdir():
            try:
                own.add(os.readlink(descriptor))
            except FileNotFoundError:
                continue
    found = []
    for name in ("tcp", "tcp6"):
        for line in pathlib.Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == LISTENS and f"socket:[{inode}]" in own:
                host, port = local.split(":")
                # Words of four bytes, each in the order of the machine.
                packed = b"".join(
                    int(host[i : i + 8], 16).to_bytes(4, sys.byteorder)
                    for i in range(0, len(host), 8)
                )
                ip = ipaddress.ip_address(packed)
                found.append((str(getattr(ip, "ipv4_mapped", None) or ip), int(port, 16)))
    return sorted(found)


LISTEN = """
import socket, time
servers = [socket.create_server(("127.0.0.1", 0)), socket.create_server(("", 0))]
print(*(each.getsockname()[1] for each in servers), flush=True)
time.sleep(600)
"""


def test_the_scan_finds_where_a_process_listens_and_no_other_process():
    with socket.create_server(("127.0.0.1", 0)), start(["-c", LISTEN]) as process:
        one, every = map(int, process.stdout.readline().split())
        assert listening(process) == sorted([("127.0.0.1", one), ("0.0.0.0", every)])


@pytest.mark.parametrize("environment", [(), WORKERS], ids=["jax", "workers"])
def test_a_run_on_one_host_listens_nowhere(environment, config, tmp_path):
    run_dir = tmp_path / "run"
    command = ["-m", "sebulba.train", config, "--run-dir", run_dir, *ENDLESS, *environment]
    with start(command) as process:
        wait_for((run_dir / "metrics.jsonl").exists, process)
        assert listening(process) == []


def test_a_run_on_two_hosts_listens_at_the_coordinator_s_address(config, tmp_path):
    run_dir, port = tmp_path / "run", free_port()
    with hosts(config, run_dir, *ENDLESS, port=port) as processes:
        wait_for((run_dir / "metrics.jsonl").exists, *processes)
        first, second = map(listening, processes)
        # Each host listens at one port more: XLA exchanges the gradients of CPUs over Gloo.
        assert [len(first), len(second)] == [2, 1]
        assert ("127.0.0.1", port) in first
        assert not {host for host, _ in first + second} & {"0.0.0.0", "::"}


def test_ten_thousand_strangers_do_not_keep_a_run_from_starting(config, tmp_path):
    run_dir, port, kept = tmp_path / "run", free_port(), []
    with hosts(
        config,
        run_dir,
        port=port,
        before_host_1=lambda: flood(port, NUM_CONNECTIONS, kept),
    ) as processes:
        ends = [end_of(process) for process in processes]
    assert [code for code, _ in ends] == [0, 0], ends
    assert [each["status"] for each in summaries(run_dir)] == ["done", "done"]
    assert len(kept) > 100
    for connection in kept:
        connection.close()
