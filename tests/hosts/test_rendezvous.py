"""Processes that join a run, or do not."""

import socket
import threading
import time

import pytest

from sebulba.config.loading import load_config
from sebulba.errors import ConfigError
from sebulba.hosts import rendezvous
from sebulba.hosts.rendezvous import JoinError, wait_for_processes
from tests.hosts.processes import CONFIG, end_of, free_port, last_line, start

LONG_S = 60.0
EXIT_CONFIG = 2
EXIT_NOT_JOINED = 8


def join(port, process_id, num_processes=3, timeout_s=LONG_S, host="127.0.0.1"):
    wait_for_processes(
        f"{host}:{port}",
        num_processes=num_processes,
        process_id=process_id,
        timeout_s=timeout_s,
    )


@pytest.fixture
def joining():
    """Start joins in threads; the result of each is its error, or None."""
    threads = []

    def begin(*args, **kwargs):
        results = []

        def run():
            try:
                join(*args, **kwargs)
                results.append(None)
            except Exception as error:
                results.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        threads.append(thread)

        def result():
            thread.join(LONG_S)
            return results[0]

        return result

    yield begin
    for thread in threads:
        thread.join(LONG_S)
        assert not thread.is_alive()


def connect(port, data=b""):
    """Connect to a port once something listens there."""
    while True:
        try:
            connection = socket.create_connection(("127.0.0.1", port))
        except ConnectionRefusedError:
            time.sleep(0.01)
            continue
        connection.sendall(data)
        return connection


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_processes_join_in_any_order(order, joining):
    port = free_port()
    results = [joining(port, number) for number in order]
    assert [result() for result in results] == [None] * 3
    socket.create_server(("", port)).close()  # free again


def test_strangers_and_processes_that_end_are_no_members(joining):
    """Keep waiting for process 1 when a port scanner, or a process 1 that dies, was there."""
    port = free_port()
    first = joining(port, 0, 2)
    strangers = [connect(port), connect(port, b"GET / HTTP/1.1\r\n\r\n"), connect(port, b"x" * 999)]
    connect(port, b"sebulba 1 2").close()
    with connect(port, b"sebulba 0 2\n") as liar:
        assert liar.recv(100).startswith(b"sebulba wrong process_id")
    assert joining(port, 1, 2)() is None
    assert first() is None
    for stranger in strangers:
        stranger.close()


def test_9_a_process_that_never_joins_is_named_on_all_others(joining):
    port = free_port()
    first, second = joining(port, 0, timeout_s=1.0), joining(port, 1, timeout_s=LONG_S)
    expected = "of 3 processes, 2 did not join within 1 s (distributed.join_timeout_s)"
    for error in (first(), second()):
        assert isinstance(error, JoinError)
        assert str(error) == expected


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("host", ["127.0.0.1", "no-such-host.invalid", "a" * 70])
def test_9_a_coordinator_that_cannot_be_reached_is_an_error(host, number, monkeypatch):
    port = free_port()
    if number == 0:
        monkeypatch.setattr(rendezvous, "_connect", raise_refused)
    with pytest.raises(JoinError, match=rf"process 0 at {host}:{port} .* within 0\.5 s"):
        join(port, number, timeout_s=0.5, host=host)


def raise_refused(address, deadline):
    raise ConnectionRefusedError("Connection refused")


def test_9_a_program_that_is_not_this_run_is_an_error(joining):
    with socket.create_server(("127.0.0.1", 0)) as server:
        result = joining(server.getsockname()[1], 1, timeout_s=0.5)
        with server.accept()[0] as connection:
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        assert isinstance(result(), JoinError)


def test_10_a_port_in_use_is_an_error_that_names_it():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(ConfigError, match=f"expected a free port on process 0, got {port}"):
            join(port, 0)


def test_processes_that_contradict_each_other_are_an_error(joining):
    port = free_port()
    first, second = joining(port, 0, timeout_s=2.0), joining(port, 1, timeout_s=2.0)
    error = joining(port, 2, num_processes=4)()
    assert isinstance(error, ConfigError)
    assert str(error).startswith("distributed.num_processes: expected 3, as on process 0, got 4")
    assert isinstance(first(), JoinError) and isinstance(second(), JoinError)


def test_a_coordinator_s_port_is_one():
    flags = ["--distributed.num-processes=2", "--distributed.process-id=0"]
    for port in ("0", "65536", "9" * 5000, "x"):
        with pytest.raises(ConfigError, match="expected host:port"):
            load_config(None, [f"--distributed.coordinator=here:{port}", *flags])


BLACK_HOLE = "192.0.2.1"  # reserved for documentation: no host has it


def train_one(tmp_path, coordinator, process_id, join_timeout_s=3):
    """Run one process of two; return its exit code and output."""
    (tmp_path / "config.yaml").write_text(CONFIG)
    place = ["--distributed.coordinator", coordinator, "--distributed.process-id", process_id]
    place += ["--distributed.num-processes", 2, "--distributed.join-timeout-s", join_timeout_s]
    run_dir = tmp_path / "run"
    command = ["-m", "sebulba.train", tmp_path / "config.yaml", "--run-dir", run_dir, *place]
    with start(command) as process:
        end = end_of(process)
    assert not run_dir.exists()
    return end


@pytest.mark.slow
@pytest.mark.parametrize(
    ("host", "process_id", "message"),
    [
        ("127.0.0.1", 0, "of 2 processes, 1 did not join within 3 s"),
        ("127.0.0.1", 1, "expected to reach process 0 at 127.0.0.1:"),
        ("no-such-host.invalid", 0, "expected to reach process 0 at no-such-host.invalid:"),
        ("no-such-host.invalid", 1, "expected to reach process 0 at no-such-host.invalid:"),
        (BLACK_HOLE, 1, f"expected to reach process 0 at {BLACK_HOLE}:"),
    ],
)
def test_9_a_process_alone_ends_with_its_own_code_and_last_line(
    host, process_id, message, tmp_path
):
    code, output = train_one(tmp_path, f"{host}:{free_port()}", process_id)
    assert code == EXIT_NOT_JOINED, output
    assert last_line(output).startswith(f"sebulba: {message}"), output
    assert len(output.splitlines()) == 1, output


@pytest.mark.slow
def test_10_a_port_in_use_ends_process_0_with_code_2(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code, output = train_one(tmp_path, f"127.0.0.1:{port}", 0)
    assert code == EXIT_CONFIG, output
    assert f"expected a free port on process 0, got {port}" in last_line(output)
