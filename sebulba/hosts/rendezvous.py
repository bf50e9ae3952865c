"""Waits until all processes of a run are there, before `jax.distributed` connects them. No jax.

If a process is missing, XLA's client aborts with a C++ stack; if the coordinator's port is in use,
it crashes. Here both are errors that say what is wrong: process 0 listens at the coordinator's
address, every other process connects and sends `NUMBER NUM_PROCESSES`, and once all have done so,
process 0 answers `go` and frees the port for XLA.

Every line is `sebulba PROOF TEXT`, where the proof is the text's HMAC under the token that the
processes of a run share. So a process believes only lines of its own run, and no line contains the
token. Without a token anyone can compute the proof.
"""

import contextlib
import errno
import hmac
import ipaddress
import re
import selectors
import socket
import time

from sebulba.errors import ConfigError

TOKEN_VARIABLE = "SEBULBA_JOIN_TOKEN"
"""Environment variable with the token that the processes of a run share."""
BIND_VARIABLE = "JAX_COORDINATOR_BIND_ADDRESS"
"""Environment variable with the address at which process 0 listens, if not the coordinator's."""

_RETRY_S = 0.2
_CONNECT_S = 5.0  # an attempt; a wrong address may not answer at all
_GRACE_S = 1.0
_MAX_LINE = 300  # bytes
_BACKLOG = 4096  # the kernel's own limit may be lower
# Strangers may connect and say nothing. The oldest connection is closed for a new one, but not
# before all that were accepted together with it have been read once.
_MAX_SILENT = 128
_MAX_ACCEPTED_TOGETHER = 64


class JoinError(RuntimeError):
    """The processes of the run did not find each other in time."""


def wait_for_processes(
    coordinator: str,
    *,
    num_processes: int,
    process_id: int,
    timeout_s: float,
    token: str,
    bind: str | None,
) -> str | None:
    """Return once all processes have called this.

    Args:
        coordinator: `host:port` of process 0.
        num_processes: number of processes of the run.
        process_id: number of this process.
        timeout_s: limit until all have called this, in seconds.
        token: a secret of the run's processes; empty: whoever reaches the port can join.
        bind: `host:port` at which process 0 listens; None: `coordinator`.

    Returns:
        `ip:port` at which process 0 listened, in process 0.

    Raises:
        ConfigError: the port cannot be used, or the processes contradict each other.
        JoinError: this process cannot reach the coordinator, or another one did not come.
    """
    address = _split(coordinator)
    deadline = time.monotonic() + timeout_s
    within = f"within {timeout_s:g} s (distributed.join_timeout_s)"
    if process_id != 0:
        _join(address, f"{process_id} {num_processes}", token, deadline, within)
        return None
    listener = _listen(address if bind is None else _split(bind), deadline, within)
    with _Server(listener, num_processes, token) as server:
        if missing := server.serve(deadline, within):
            raise JoinError(missing)
        host, port = listener.getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)  # an IPv6 address has brackets


def _listen(address: tuple[str, int], deadline: float, within: str) -> socket.socket:
    """Listen at an address of this machine, on no other one if it is clear which that is."""
    host, port = address
    has_both = socket.has_dualstack_ipv6()
    while True:
        try:
            ip = _own_ip(host)
            is_ipv6 = ":" in ip or (not ip and has_both)
            return socket.create_server(
                (ip, port),
                family=socket.AF_INET6 if is_ipv6 else socket.AF_INET,
                dualstack_ipv6=has_both and ip in ("", "::"),
                backlog=_BACKLOG,
            )
        except (OSError, UnicodeError, OverflowError) as error:
            is_unknown = isinstance(error, (socket.gaierror, UnicodeError))
            is_elsewhere = isinstance(error, OSError) and error.errno == errno.EADDRNOTAVAIL
            if not (is_unknown or is_elsewhere):
                raise ConfigError(
                    f"distributed.coordinator: expected a free port on process 0, got {port}:"
                    f" {error}. Choose another port, or end the process that uses it"
                ) from None
            # The name of a machine that has just started may resolve to its former address.
            if time.monotonic() + _RETRY_S > deadline:
                problem = str(error)
                if is_elsewhere:
                    problem = (
                        f"process 0 has no such address. If others reach it there, set"
                        f" {BIND_VARIABLE} to the address at which it listens, such as [::]:{port}"
                    )
                raise JoinError(_describe_unreachable(address, within, problem)) from None
        time.sleep(_RETRY_S)


def _own_ip(host: str) -> str:
    """Return the IP address at which others reach this machine as `host`; empty: may be any."""
    found = {str(info[4][0]) for info in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    if host in found or host == "localhost":
        return host if host in found else min(found)  # 127.0.0.1 before ::1
    # A name may have an address in each network. On Debian a machine's own name is 127.0.1.1 to
    # itself, which others do not reach.
    if len(found) > 1 or any(ipaddress.ip_address(each).is_loopback for each in found):
        return ""
    return found.pop()


class _Server:
    """Process 0, which tells the others when all are there, or that some are not."""

    def __init__(self, listener: socket.socket, num_processes: int, token: str):
        self._num_processes = num_processes
        self._token = token
        self._joined: dict[int, socket.socket] = {}
        self._silent: dict[socket.socket, bytes] = {}  # what each has said so far, the oldest first
        self._turned_away = ""  # why, the last time
        self._selector = selectors.DefaultSelector()
        self._listener = listener
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)

    def __enter__(self) -> "_Server":
        return self

    def __exit__(self, *error: object) -> None:
        for connection in (*self._silent, *self._joined.values(), self._listener):
            connection.close()
        self._selector.close()

    def serve(self, deadline: float, within: str) -> str | None:
        """Wait for all processes, and tell them; return which are missing."""
        while len(self._joined) < self._num_processes - 1:
            if (left := deadline - time.monotonic()) <= 0:
                break
            for key, _ in self._selector.select(left):
                connection = key.fileobj
                assert isinstance(connection, socket.socket)
                if connection is self._listener:
                    self._accept()
                elif connection in self._silent:  # not closed by `_accept` just now
                    self._receive(connection)
                elif connection in self._joined.values():
                    self._lose(connection)
        missing = set(range(1, self._num_processes)) - set(self._joined)
        names = ", ".join(map(str, sorted(missing)))
        problem = f"of {self._num_processes} processes, {names} did not join {within}"
        if self._turned_away:
            problem += f"; one was turned away: {self._turned_away}"
        for connection in self._joined.values():
            _send(connection, f"late {problem}" if missing else "go", self._token)
        return problem if missing else None

    def _accept(self) -> None:
        for _ in range(_MAX_ACCEPTED_TOGETHER):
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError:  # it has gone, or too many files are open
                self._close_oldest()
                return
            connection.setblocking(False)
            self._silent[connection] = b""
            self._selector.register(connection, selectors.EVENT_READ)
            if len(self._silent) > _MAX_SILENT:
                self._close_oldest()

    def _close_oldest(self) -> None:
        if self._silent:
            self._close(next(iter(self._silent)))

    def _close(self, connection: socket.socket) -> None:
        self._silent.pop(connection, None)
        self._selector.unregister(connection)
        connection.close()

    def _receive(self, connection: socket.socket) -> None:
        data = b""
        with contextlib.suppress(OSError):
            data = connection.recv(_MAX_LINE)
        line = self._silent[connection] = self._silent[connection] + data
        if data and b"\n" not in line and len(line) < _MAX_LINE:
            return
        if data and (problem := self._add(connection, line)) is not None:
            _send(connection, f"wrong {problem}", self._token)
            self._turned_away = problem
        if connection not in self._joined.values():
            self._close(connection)

    def _lose(self, connection: socket.socket) -> None:
        # A process that ended may be started again, and then joins again.
        self._joined = {n: each for n, each in self._joined.items() if each is not connection}
        self._close(connection)

    def _add(self, connection: socket.socket, line: bytes) -> str | None:
        """Record a process that has joined, or return the answer that turns it away."""
        text = _verified(line, self._token)
        match = re.fullmatch(r"(\d{1,9}) (\d{1,9})", text or "")
        if match is None:
            return f"expected a process of this run, with its {TOKEN_VARIABLE}"
        number, count = int(match[1]), int(match[2])
        if count != self._num_processes:
            return (
                f"num_processes: expected {self._num_processes}, as on process 0, got {count}"
                f" on process {number}"
            )
        if number in self._joined or number == 0:
            return f"process_id: expected another number in each process, got {number} in two"
        if number >= count:
            return f"process_id: expected less than {count}, got {number}"
        self._joined[number] = connection
        del self._silent[connection]
        return None


def _join(address: tuple[str, int], hello: str, token: str, deadline: float, within: str) -> None:
    """Send `hello` until process 0 answers that all processes are there."""
    problem = ""
    while time.monotonic() < deadline:
        answer = None
        try:
            with _connect(address, deadline) as connection:
                connection.sendall(_signed(hello, token))
                # Process 0 answers at its own deadline, which may be a little later.
                answer = _verified(_read_line(connection, deadline + _GRACE_S), token)
                problem = (
                    f"what listens there is no process of this run, or has another {TOKEN_VARIABLE}"
                )
        except (OSError, UnicodeError) as error:
            problem = str(error)
        kind, _, text = (answer or "").partition(" ")
        if kind == "go":
            return
        if kind == "late":
            raise JoinError(text)
        if kind == "wrong":
            raise ConfigError(f"distributed.{text}")
        # Nobody, an earlier run that has not ended yet, or another program.
        time.sleep(_RETRY_S)
    raise JoinError(_describe_unreachable(address, within, problem))


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


def _send(connection: socket.socket, answer: str, token: str) -> None:
    with contextlib.suppress(OSError):
        connection.sendall(_signed(answer, token))


def _signed(text: str, token: str) -> bytes:
    """Return the line that says a text, and that a process with this token says it."""
    return f"sebulba {_proof(text, token)} {text}\n".encode()


def _verified(line: bytes, token: str) -> str | None:
    """Return the text of a line if it comes from a process with this token."""
    name, _, rest = line.partition(b"\n")[0].decode(errors="replace").partition(" ")
    proof, _, text = rest.partition(" ")
    is_own = hmac.compare_digest(proof.encode(), _proof(text, token).encode())
    return text if name == "sebulba" and is_own else None


def _proof(text: str, token: str) -> str:
    return hmac.new(token.encode(), text.encode(), "sha256").hexdigest()


def _read_line(connection: socket.socket, deadline: float) -> bytes:
    """Return a line, or what came of it before the connection ended."""
    data = b""
    while b"\n" not in data and len(data) < 1 << 16:
        if (left := deadline - time.monotonic()) <= 0:
            raise TimeoutError("timed out")
        connection.settimeout(left)
        received = connection.recv(1 << 12)
        if not received:
            break
        data += received
    return data
