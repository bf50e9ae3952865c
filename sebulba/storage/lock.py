"""The lock of a run directory: one process at a time writes to it. Imports no jax.

The lock is a file that names its owner. It is created by a hard link, which is atomic on shared
file systems too, unlike `flock`. On this machine the process table tells at once whether the owner
is alive. An owner on another machine proves it by touching the file: a newcomer watches whether the
time stamp changes, and never compares it with a clock, since clocks differ.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import socket
import threading
import time
import uuid
from collections.abc import Callable

from sebulba.errors import ConfigError
from sebulba.storage.names import LOCK

_HEARTBEAT_S = 1.0
# Many beats: the owner's machine may be slow, and its file system may cache time stamps.
_WATCHED_BEATS = 20
_FEW_BEATS = 5  # where `take_lock` looks again
# Older knowledge is checked again before anything is written: the process may have been paused.
_FRESH_S = 3.0
# Far longer than another process puts the lock aside for; see `_remove`.
_ASIDE_S = 0.1


class RunDirectoryError(RuntimeError):
    """This process may not, or cannot, write to its run directory any more."""


class TakenOverError(RunDirectoryError):
    """Another process writes to the run directory; nothing more may be saved there."""


class GoneError(RunDirectoryError):
    """The run directory, or its lock, was moved or removed during the run."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Owner:
    """A process, recognisable after the system has reused its number."""

    token: str  # of this lock, since a process may take several
    host: str
    machine: str  # equal: the process is in this machine's process table
    pid: int
    process_started: str

    @classmethod
    def of_this_process(cls) -> "_Owner":
        return cls(
            token=uuid.uuid4().hex,
            host=socket.gethostname(),
            machine=_machine(),
            pid=os.getpid(),
            process_started=_state_and_start(os.getpid())[1],
        )

    def __str__(self) -> str:
        return f"process {self.pid} on host {self.host}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Seen:
    """A lock file at one moment."""

    content: bytes
    beat: int  # its time stamp

    @property
    def owner(self) -> _Owner | None:
        """Its owner; None: the file is damaged or is being written."""
        try:
            owner = _Owner(**json.loads(self.content))
        except (ValueError, TypeError, RecursionError):
            return None
        return owner if isinstance(owner.pid, int) else None


class RunLock:
    """The lock of a run directory, held by this process until `release`. Thread-safe."""

    def __init__(self, directory: pathlib.Path, owner: _Owner):
        """Begin to hold a lock that `take_lock` has created."""
        self._path = directory / LOCK
        self._content = _content(owner)
        self._verified_at = _now()
        self._loss: RunDirectoryError | None = None
        self._mutex = threading.Lock()
        self._is_released = threading.Event()
        self._thread: threading.Thread | None = None
        self._fd = os.open(self._path, os.O_RDONLY)

    def keep(self, start_thread: Callable[[Callable[[], None], str], threading.Thread]) -> None:
        """Start the thread that shows other machines that this process is alive."""
        self._thread = start_thread(self._beat, "run lock")

    def check(self) -> None:
        """Make sure that this process may write; touches the disk only after a pause.

        Raises:
            RunDirectoryError: another process has taken over, or the directory is gone.
        """
        if _now() - self._verified_at > _FRESH_S:
            self._verify()
        self.raise_if_lost()

    def raise_if_lost(self) -> None:
        """Raise what the thread has found, without touching the disk.

        Raises:
            RunDirectoryError: as `check`.
        """
        if self._loss is not None:
            raise self._loss

    def verify(self) -> None:
        """As `check`, but look at the disk in any case."""
        self._verify()
        self.raise_if_lost()

    def release(self) -> None:
        """Give the directory back; may be called twice."""
        if self._is_released.is_set():
            return
        self._is_released.set()
        if self._thread is not None:
            self._thread.join(_HEARTBEAT_S)
        with contextlib.suppress(OSError):
            if self._path.read_bytes() == self._content:
                self._path.unlink()
        os.close(self._fd)

    def _beat(self) -> None:
        while not self._is_released.wait(_HEARTBEAT_S):
            self._verify()

    def _verify(self) -> None:
        """Touch the lock and find out whether it is still this process's."""
        with self._mutex:
            if self._is_released.is_set() or self._loss is not None:
                return
            try:
                # By descriptor: the path may be another owner's by now.
                with contextlib.suppress(OSError):
                    os.utime(self._fd)
                content = self._read_twice()
            except OSError:
                return  # The file system fails, which says nothing about the lock.
            if content is None:
                self._loss = GoneError(
                    f"the run directory {self._path.parent} is gone: it, or its {LOCK}, was moved"
                    " or removed during the run"
                )
            elif content != self._content:
                self._loss = _taken_over(self._path, content)
            self._verified_at = _now()

    def _read_twice(self) -> bytes | None:
        """Return the lock's content; None: there is no lock, and not for a moment only."""
        for _ in range(2):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                return self._path.read_bytes()
            time.sleep(_ASIDE_S)
        return None


def take_lock(directory: pathlib.Path, *, on_message: Callable[[str], None]) -> RunLock:
    """Take the lock of an existing directory.

    Waits up to 20 s if the lock's owner is on another machine and gives no sign of life.

    Args:
        directory: of a run, or of one host of it.
        on_message: takes a line of text about the wait, and about a lock that is taken over.

    Raises:
        ConfigError: another process holds the lock; the message says which.
        OSError: the directory is not writable.
    """
    owner = _Owner.of_this_process()
    path = directory / LOCK
    while True:
        if not _create(path, _content(owner)):
            seen = _read(path)
            if seen is None:
                continue
            if seen.content != _content(owner):
                if _is_alive(path, seen, on_message):
                    raise _in_use(directory, seen)
                on_message(f"{path}: {seen.owner or 'its owner'} is gone; taken over")
                _remove(path, seen, owner)
                continue
        # Another newcomer may have put the lock aside for a moment; see `_remove`.
        with contextlib.suppress(FileNotFoundError):
            return RunLock(directory, owner)


def refuse_if_in_use(directory: pathlib.Path) -> None:
    """Refuse a directory that another process of this machine uses, before jax is imported.

    Raises:
        ConfigError: as `take_lock`, which decides about all other cases.
    """
    with contextlib.suppress(OSError):
        seen = _read(directory / LOCK)
        if seen is None or seen.owner is None or seen.owner.machine != _machine():
            return
        if _is_running(seen.owner):
            raise _in_use(directory, seen)


def wait_until_released(directory: pathlib.Path, *, within_s: float) -> None:
    """Wait while a process that is alive holds the lock of a directory, such as one that saves.

    Returns after `within_s` at the latest; `take_lock` decides about what is there then.
    """
    path, deadline = directory / LOCK, _now() + within_s
    while _now() < deadline and (seen := _read(path)) is not None:
        if not _is_alive(path, seen, lambda text: None, num_beats=_FEW_BEATS):
            return
        time.sleep(_ASIDE_S)


def _in_use(directory: pathlib.Path, seen: _Seen) -> ConfigError:
    return ConfigError(
        f"run_dir: {directory} is in use by {seen.owner or 'another process'}; wait for it, stop"
        f" it, or choose another run_dir (its lock: {directory / LOCK})"
    )


def _is_alive(
    path: pathlib.Path,
    seen: _Seen,
    on_message: Callable[[str], None],
    *,
    num_beats: int = _WATCHED_BEATS,
) -> bool:
    owner = seen.owner
    if owner is not None and owner.machine == _machine():
        return _is_running(owner)
    wait_s = num_beats * _HEARTBEAT_S
    on_message(f"{path}: held by {owner or 'another process'}; watching it for up to {wait_s:g} s")
    for _ in range(num_beats):
        time.sleep(_HEARTBEAT_S)
        now = _read(path)
        if now != seen:
            return now is not None
    return False


def _create(path: pathlib.Path, content: bytes) -> bool:
    """Create a lock file; return False if there is one."""
    # First the content, then the name: nobody reads an incomplete lock.
    mine = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
    try:
        _write(mine, content)
        try:
            os.link(mine, path)
        except FileExistsError:
            # On NFS a link may succeed although its answer was lost.
            return mine.stat().st_nlink == 2
        except OSError:  # The file system has no hard links.
            try:
                _write(path, content)
            except FileExistsError:
                return False
        return True
    finally:
        mine.unlink(missing_ok=True)


def _write(path: pathlib.Path, content: bytes) -> None:
    with open(path, "xb") as file:
        try:
            file.write(content)
            file.flush()
        except OSError:
            path.unlink(missing_ok=True)
            raise


def _read(path: pathlib.Path) -> _Seen | None:
    try:
        with open(path, "rb") as file:
            return _Seen(content=file.read(), beat=os.fstat(file.fileno()).st_mtime_ns)
    except FileNotFoundError:
        return None


def _remove(path: pathlib.Path, seen: _Seen, by: _Owner) -> None:
    """Remove the lock of an owner that is gone, unless another newcomer has been faster."""
    aside = path.with_name(f"{path.name}.{by.token}.gone")
    with contextlib.suppress(FileNotFoundError):
        path.rename(aside)
        if aside.read_bytes() != seen.content:
            with contextlib.suppress(OSError):
                os.link(aside, path)
        aside.unlink()


def _taken_over(path: pathlib.Path, content: bytes) -> TakenOverError:
    by = _Seen(content=content, beat=0).owner or "another process"
    return TakenOverError(
        f"{by} has taken over {path.parent}, because this process gave no sign of life;"
        " nothing more is saved"
    )


def _content(owner: _Owner) -> bytes:
    return json.dumps(dataclasses.asdict(owner)).encode()


def _machine() -> str:
    """Return what processes that see each other's numbers have in common."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        parts += [boot, os.readlink("/proc/self/ns/pid")]
    return " ".join(parts)


def _is_running(owner: _Owner) -> bool:
    """Return whether a process of this machine runs."""
    try:
        state, started = _state_and_start(owner.pid)
        if started:
            return state not in "ZX" and started == owner.process_started
        os.kill(owner.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _state_and_start(pid: int) -> tuple[str, str]:
    """Return a process's state and start time; empty: the system does not tell."""
    try:
        # After the name, which may hold anything, come the state and, as the 20th, the start.
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[0], fields[19]
    except (OSError, IndexError):
        return "", ""


def _now() -> float:
    """Return seconds that also pass while the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
