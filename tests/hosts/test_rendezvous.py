"""Processes that join a run, or do not."""

import contextlib
import errno
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
TOKEN = "the secret of the run"
BLACK_HOLE = "192.0.2.1"  # reserved for documentation: no host has it
NO_HOST = "no-such-host.invalid"
EXIT_CONFIG = 2
EXIT_NOT_JOINED = 8


def join(
    port, process_id, num_processes=3, timeout_s=LONG_S, host="127.0.0.1", token=TOKEN, bind=None
):
    return wait_for_processes(
        f"{host}:{port}",
        num_processes=num_processes,
        process_id=process_id,
        timeout_s=timeout_s,
        token=token,
        bind=bind,
    )


@pytest.fixture
def joining():
    """Start joins in threads; the result of each is its error, or what it returned."""
    threads = []

    def begin(*args, **kwargs):
        results = []

        def run():
            try:
                results.append(join(*args, **kwargs))
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
    assert [result() for result in results] == [
        None if number else f"127.0.0.1:{port}" for number in order
    ]
    socket.create_server(("", port)).close()  # free again


def hello(number, count=2, token=TOKEN):
    """Return the line with which a process joins."""
    return rendezvous._signed(f"{number} {count}", token)


def test_strangers_and_processes_that_end_are_no_members(joining):
    """Keep waiting for process 1 when a port scanner, or a process 1 that dies, was there."""
    port = free_port()
    first = joining(port, 0, 2)
    strangers = [connect(port), connect(port, b"GET / HTTP/1.1\r\n\r\n"), connect(port, b"x" * 999)]
    connect(port, hello(1)[:-1]).close()
    with connect(port, hello(0)) as liar:
        assert b" wrong process_id: expected another number" in liar.recv(200)
    with connect(port, hello(2)) as liar:
        assert b" wrong process_id: expected less than 2" in liar.recv(200)
    assert joining(port, 1, 2)() is None
    assert first() == f"127.0.0.1:{port}"
    for stranger in strangers:
        stranger.close()


@pytest.mark.parametrize(
    "line",
    [
        b"sebulba 1 2\n",
        hello(1, token=""),
        hello(1, token="a guess"),
        hello(1).replace(b" 1 2", b" 1 02"),
        b"sebulba  1 2\n",
        b"sebulba \xff 1 2\n",
    ],
)
def test_a_stranger_without_the_token_does_not_take_the_place_of_a_process(line, joining):
    port = free_port()
    first = joining(port, 0, 2)
    with connect(port, line) as stranger:
        assert b" wrong expected a process of this run, with its SEBULBA_JOIN" in stranger.recv(200)
        assert joining(port, 1, 2)() is None
        assert first() == f"127.0.0.1:{port}"


def test_no_line_contains_the_token():
    assert TOKEN.encode() not in hello(1)
    assert rendezvous._verified(hello(1), TOKEN) == "1 2"
    assert rendezvous._verified(hello(1), "another") is None


def test_a_process_believes_no_coordinator_without_the_token(joining):
    """Wait for process 0 although what listens there says that all are there."""
    answers = [
        b"sebulba go\n",
        rendezvous._signed("go", ""),
        rendezvous._signed("wrong run", "a guess"),
        rendezvous._signed("late all", ""),
        rendezvous._signed("go", TOKEN),
    ]
    with socket.create_server(("127.0.0.1", 0)) as server:
        result = joining(server.getsockname()[1], 1)
        for answer in answers:
            with server.accept()[0] as connection:
                assert connection.recv(200) == hello(1, 3)
                connection.sendall(answer)
        assert result() is None


def test_processes_with_two_tokens_are_told_of_the_variable(joining):
    port = free_port()
    first = joining(port, 0, 2, timeout_s=1.0)
    second = joining(port, 1, 2, timeout_s=1.0, token="")
    assert "one was turned away: expected a process of this run, with its SEBULBA" in str(first())
    assert "or has another SEBULBA_JOIN_TOKEN" in str(second())


def test_without_a_token_processes_join_each_other(joining):
    port = free_port()
    results = [joining(port, number, 2, token="") for number in range(2)]
    assert [result() for result in results] == [f"127.0.0.1:{port}", None]


def test_an_answer_that_comes_byte_by_byte_does_not_move_the_deadline(joining):
    """Each byte arrives in time, but the line never ends."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        result = joining(server.getsockname()[1], 1, timeout_s=0.5)
        with server.accept()[0] as connection, contextlib.suppress(OSError):
            while True:
                connection.sendall(b"x")
                time.sleep(0.01)
        assert isinstance(result(), JoinError)


def flood(port, num_connections, kept):
    """Connect often to a port, with lines of every kind, and keep some of the connections."""
    lines = [b"", b"sebulba 1 2", b"sebulba 1 2\n", b"\n", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 500]
    for number in range(num_connections):
        try:
            connection = connect(port, lines[number % len(lines)])
        except OSError:  # it was closed in turn
            continue
        kept.append(connection)
        if len(kept) > 400:
            kept.pop(0).close()


def test_a_thousand_connections_keep_no_process_out(joining):
    port, kept = free_port(), []
    first = joining(port, 0, 3)
    second = joining(port, 1, 3)
    flood(port, 1000, kept)
    third = joining(port, 2, 3)
    assert [each() for each in (first, second, third)] == [f"127.0.0.1:{port}", None, None]
    for connection in kept:
        connection.close()


class FewFiles(socket.socket):
    """The listener of a process that may open three more files."""

    def __init__(self, address, deadline, within):
        super().__init__()
        self.bind(address)
        self.listen()
        self._accepted = []

    def accept(self):
        self._accepted = [each for each in self._accepted if each.fileno() >= 0]
        if len(self._accepted) == 3:
            raise OSError(errno.EMFILE, "Too many open files")
        connection, address = super().accept()
        self._accepted.append(connection)
        return connection, address


def test_processes_join_although_too_many_files_are_open(joining, monkeypatch):
    """Close a connection that says nothing when no other one can be accepted."""
    port = free_port()
    monkeypatch.setattr(rendezvous, "_listen", FewFiles)
    first = joining(port, 0, 2)
    silent = [connect(port) for _ in range(5)]
    assert joining(port, 1, 2)() is None
    assert first() == f"127.0.0.1:{port}"
    for connection in silent:
        connection.close()


def test_9_a_process_that_never_joins_is_named_on_all_others(joining):
    port = free_port()
    first, second = joining(port, 0, timeout_s=1.0), joining(port, 1, timeout_s=LONG_S)
    expected = "of 3 processes, 2 did not join within 1 s (distributed.join_timeout_s)"
    for error in (first(), second()):
        assert isinstance(error, JoinError)
        assert str(error) == expected


@pytest.mark.parametrize(
    ("host", "number"),
    [
        ("127.0.0.1", 1),
        *((host, number) for host in (BLACK_HOLE, NO_HOST, "a" * 70) for number in (0, 1)),
    ],
)
def test_9_a_coordinator_that_cannot_be_reached_is_an_error(host, number):
    with pytest.raises(JoinError, match=rf"process 0 at {host}:\d+ .* within 0\.5 s"):
        join(free_port(), number, timeout_s=0.5, host=host)


def test_process_0_names_the_setting_if_it_has_not_the_coordinator_s_address():
    with pytest.raises(JoinError, match=r"set JAX_COORDINATOR_BIND_ADDRESS .* such as \[::\]:"):
        join(free_port(), 0, timeout_s=0.0, host=BLACK_HOLE)


@pytest.mark.parametrize(
    ("host", "found", "address"),
    [
        ("127.0.0.1", ["127.0.0.1"], "127.0.0.1"),
        ("::1", ["::1"], "::1"),
        ("localhost", ["::1", "127.0.0.1"], "127.0.0.1"),
        ("node1", ["10.0.0.5", "10.0.0.5"], "10.0.0.5"),
        ("node1", ["127.0.1.1"], ""),  # what Debian says of its own name
        ("node1", ["10.0.0.5", "10.1.0.5"], ""),
    ],
)
def test_process_0_listens_at_the_coordinator_s_own_address(host, found, address, monkeypatch):
    infos = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (each, 0)) for each in found]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kwargs: infos)
    assert rendezvous._own_ip(host) == address


@pytest.mark.parametrize(
    ("host", "bind", "address"),
    [
        ("127.0.0.1", None, "127.0.0.1:{}"),
        ("localhost", None, "127.0.0.1:{}"),
        (BLACK_HOLE, "127.0.0.1:{}", "127.0.0.1:{}"),
        (BLACK_HOLE, "0.0.0.0:{}", "0.0.0.0:{}"),
    ],
)
def test_jax_gets_the_address_at_which_process_0_listened(host, bind, address):
    port = free_port()
    bind = bind and bind.format(port)
    assert join(port, 0, 1, host=host, bind=bind) == address.format(port)


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
        *(
            (host, number, f"expected to reach process 0 at {host}:")
            for host in (NO_HOST, BLACK_HOLE)
            for number in (0, 1)
        ),
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
