"""Waits until all processes of a run are there, before `jax.distributed` connects them. No jax.

If a process is missing, XLA's client aborts with a C++ stack; if the coordinator's port is in use,
it crashes. Here both are errors that say what is wrong: process 0 listens on that port, every other
process connects and sends `sebulba NUMBER NUM_PROCESSES`, and once all have done so, process 0
answers `sebulba go` and frees the port for XLA.
"""

import contextlib
import re
import selectors
import socket
import time

from sebulba.errors import ConfigError

_RETRY_S = 0.2
_CONNECT_S = 5.0  # an attempt; a wrong address may not answer at all
_GRACE_S = 1.0
_MAX_LINE = 300  # bytes


class JoinError(RuntimeError):
    """The processes of the run did not find each other in time."""


def wait_for_processes(
    coordinator: str,
    *,
    num_processes: int,
    process_id: int,
    timeout_s: float,
    port: int | None = None,
) -> None:
    """Return once all processes have called this.

    Args:
        coordinator: `host:port` of process 0.
        num_processes: of the run.
        process_id: of this process.
        timeout_s: for all of them.
        port: on which process 0 listens; default: that of `coordinator`.

    Raises:
        ConfigError: the port cannot be used, or the processes contradict each other.
        JoinError: this process cannot reach the coordinator, or another one did not come.
    """
    host, _, number = coordinator.rpartition(":")
    address = (host.strip("[]"), int(number))  # an IPv6 address has brackets
    deadline = time.monotonic() + timeout_s
    within = f"within {timeout_s:g} s (distributed.join_timeout_s)"
    if process_id != 0:
        _join(address, f"sebulba {process_id} {num_processes}\n", deadline, within)
        return
    with _Server(port or address[1], num_processes) as server:
        if (problem := _reach(address, deadline)) is not None:
            raise JoinError(_describe_unreachable(address, within, problem))
        if missing := server.serve(deadline, within):
            raise JoinError(missing)


class _Server:
    """Process 0, which tells the others when all are there, or that some are not."""

    def __init__(self, port: int, num_processes: int):
        self._num_processes = num_processes
        self._joined: dict[int, socket.socket] = {}
        self._received: dict[socket.socket, bytes] = {}
        self._turned_away = ""  # why, the last time
        self._selector = selectors.DefaultSelector()
        has_both = socket.has_dualstack_ipv6()
        try:
            self._listener = socket.create_server(
                ("", port),
                family=socket.AF_INET6 if has_both else socket.AF_INET,
                dualstack_ipv6=has_both,
                backlog=max(num_processes, 128),
            )
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"distributed.coordinator: expected a free port on process 0, got {port}: {error}."
                " Choose another port, or end the process that uses it"
            ) from None
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)

    def __enter__(self) -> "_Server":
        return self

    def __exit__(self, *error: object) -> None:
        for connection in self._received:
            connection.close()
        self._listener.close()
        self._selector.close()

    def serve(self, deadline: float, within: str) -> str | None:
        """Wait for all processes, and tell them; return which are missing."""
        missing = set(range(1, self._num_processes))
        while missing and (left := deadline - time.monotonic()) > 0:
            for key, _ in self._selector.select(left):
                if key.fileobj is self._listener:
                    self._accept()
                else:
                    assert isinstance(key.fileobj, socket.socket)
                    self._receive(key.fileobj)
            missing = set(range(1, self._num_processes)) - set(self._joined)
        names = ", ".join(map(str, sorted(missing)))
        problem = f"of {self._num_processes} processes, {names} did not join {within}"
        if self._turned_away:
            problem += f"; one was turned away: {self._turned_away}"
        for connection in self._joined.values():
            _send(connection, f"late {problem}" if missing else "go")
        return problem if missing else None

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            connection, _ = self._listener.accept()
            connection.setblocking(False)
            self._received[connection] = b""
            self._selector.register(connection, selectors.EVENT_READ)

    def _receive(self, connection: socket.socket) -> None:
        data = b""
        with contextlib.suppress(OSError):
            data = connection.recv(_MAX_LINE)
        self._received[connection] += data
        line = self._received[connection]
        if data and b"\n" not in line and len(line) < _MAX_LINE:
            return
        if data and connection not in self._joined.values():
            problem = self._add(connection, line)
            if problem is None:
                return
            _send(connection, f"wrong {problem}")
            self._turned_away = problem
        # A process that ended may be started again, and then joins again.
        self._joined = {n: each for n, each in self._joined.items() if each is not connection}
        self._selector.unregister(connection)
        del self._received[connection]
        connection.close()

    def _add(self, connection: socket.socket, line: bytes) -> str | None:
        """Record a process that has joined, or return the answer that turns it away."""
        match = re.fullmatch(rb"sebulba (\d+) (\d+)\n", line)
        if match is None:
            return "expected a process of this run"
        number, count = int(match[1]), int(match[2])
        if count != self._num_processes:
            return (
                f"num_processes: expected {self._num_processes}, as on process 0, got {count}"
                f" on process {number}"
            )
        if number in self._joined or number == 0:
            return f"process_id: expected another number in each process, got {number} in two"
        self._joined[number] = connection
        return None


def _join(address: tuple[str, int], hello: str, deadline: float, within: str) -> None:
    """Send `hello` until process 0 answers that all processes are there."""
    problem = ""
    while time.monotonic() < deadline:
        try:
            with _connect(address, deadline) as connection:
                connection.sendall(hello.encode())
                # Process 0 answers at its own deadline, which may be a little later.
                connection.settimeout(max(0.0, deadline - time.monotonic()) + _GRACE_S)
                answer = _read_line(connection)
        except (OSError, UnicodeError) as error:
            problem, answer = str(error), ""
        if answer == "sebulba go":
            return
        if answer.startswith("sebulba late "):
            raise JoinError(answer.removeprefix("sebulba late "))
        if answer.startswith("sebulba wrong "):
            raise ConfigError(f"distributed.{answer.removeprefix('sebulba wrong ')}")
        # Nobody, an earlier run that has not ended yet, or another program.
        time.sleep(_RETRY_S)
    problem = problem or "what listens there is no process of this run"
    raise JoinError(_describe_unreachable(address, within, problem))


def _reach(address: tuple[str, int], deadline: float) -> str | None:
    """Connect to an address; return why that failed until the deadline."""
    while True:
        try:
            _connect(address, deadline).close()
            return None
        except (OSError, UnicodeError) as error:
            if time.monotonic() + _RETRY_S > deadline:
                return str(error)
        time.sleep(_RETRY_S)


def _connect(address: tuple[str, int], deadline: float) -> socket.socket:
    left = max(_RETRY_S, deadline - time.monotonic())
    connection = socket.create_connection(address, min(_CONNECT_S, left))
    # On the way to a free port of this machine, a socket may get that port and meet itself.
    if connection.getsockname() == connection.getpeername():
        connection.close()
        raise ConnectionRefusedError("Connection refused")
    return connection


def _describe_unreachable(address: tuple[str, int], within: str, problem: str) -> str:
    host, port = address
    return (
        f"expected to reach process 0 at {host}:{port} (distributed.coordinator) {within}:"
        f" {problem}"
    )


def _send(connection: socket.socket, answer: str) -> None:
    with contextlib.suppress(OSError):
        connection.sendall(f"sebulba {answer}\n".encode())


def _read_line(connection: socket.socket) -> str:
    """Return a line, or what came of it before the connection ended."""
    data = b""
    while b"\n" not in data and len(data) < 1 << 16:
        received = connection.recv(1 << 12)
        if not received:
            break
        data += received
    return data.partition(b"\n")[0].decode(errors="replace")
