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

LOCK = "run.lock"
_CONFIG = "config.yaml"

_HEARTBEAT_S = 1.0
# Many beats: the owner's machine may be slow, and its file system may cache time stamps.
_WATCHED_BEATS = 20
# Older knowledge is checked again before anything is written: the process may have been paused.
_FRESH_S = 3.0


class RunDirectoryError(RuntimeError):
    """This process may not, or cannot, write to its run directory any more."""


class TakenOverError(RunDirectoryError):
    """Another process writes to the run directory; nothing more may be saved there."""


class MovedError(RunDirectoryError):
    """The run directory was moved or removed."""


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
        except (ValueError, TypeError):
            return None
        return owner if isinstance(owner.pid, int) else None


class RunLock:
    """The lock of a run directory, held by this process until `release`. Thread-safe."""

    def __init__(self, directory: pathlib.Path, owner: _Owner):
        """Begin to hold a lock that `take_lock` has created."""
        self.directory = directory
        self._content = _content(owner)
        self._verified_at = _now()
        self._loss: RunDirectoryError | None = None
        self._mutex = threading.Lock()
        self._is_released = threading.Event()
        self._thread: threading.Thread | None = None
        self._missing_since: float | None = None
        self._is_of_run = False  # whether there is a config that must stay
        self._fd = os.open(self._path, os.O_RDONLY)
        self._inode = directory.stat().st_ino

    def keep(self, start_thread: Callable[[Callable[[], None], str], threading.Thread]) -> None:
        """Start the thread that shows other machines that this process is alive."""
        self._is_of_run = (self.directory / _CONFIG).exists()
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

    def check_owner(self) -> None:
        """As `check`, for files that are open: these move with their directory."""
        with contextlib.suppress(MovedError):
            self.check()

    def verify(self) -> None:
        """As `check`, but look at the disk in any case."""
        self._verify()
        self.raise_if_lost()

    def recover(self) -> bool:
        """Follow a directory that was moved, or create a removed one; return whether it worked."""
        with self._mutex, contextlib.suppress(OSError):
            place = self.moved_to()
            if place is None:
                self.directory.mkdir(parents=True, exist_ok=True)
                if not _create(self._path, self._content):
                    return False
                self._reopen()
            self.directory = place or self.directory
            self._inode = self.directory.stat().st_ino
            self._loss, self._verified_at = None, _now()
            return True
        return False

    def moved_to(self) -> pathlib.Path | None:
        """Return where the directory is now; None: it was removed."""
        with contextlib.suppress(OSError):
            path = pathlib.Path(os.readlink(f"/proc/self/fd/{self._fd}"))
            if path.name == LOCK and path.read_bytes() == self._content:
                return path.parent
        return None

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

    @property
    def _path(self) -> pathlib.Path:
        return self.directory / LOCK

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
                content = self._path.read_bytes()
            except (FileNotFoundError, NotADirectoryError):
                # Not at once: what removes the lock may be about to remove the directory.
                self._missing_since = self._missing_since or _now()
                if self._is_there() and _now() - self._missing_since < _HEARTBEAT_S:
                    return
                self._loss = self._restore()
            except OSError:
                return  # The file system fails, which says nothing about the lock.
            else:
                if content != self._content:
                    self._loss = _taken_over(self._path, content)
            self._missing_since, self._verified_at = None, _now()

    def _is_there(self) -> bool:
        try:
            has_config = not self._is_of_run or (self.directory / _CONFIG).exists()
            return has_config and self.directory.stat().st_ino == self._inode
        except OSError:
            return False

    def _restore(self) -> RunDirectoryError | None:
        """Put a lock back that was removed by hand, or return why that is impossible."""
        if not self._is_there():
            place = self.moved_to()
            how = "removed" if place is None else f"moved to {place}"
            return MovedError(f"the run directory {self.directory} was {how} during the run")
        if _now() - self._verified_at > _WATCHED_BEATS * _HEARTBEAT_S / 2:
            # Another process may have come and gone meanwhile.
            return TakenOverError(
                f"the lock {self._path} was removed while this process was paused; another may have"
                " written to the run directory, so nothing more is saved"
            )
        with contextlib.suppress(OSError):
            _create(self._path, self._content)
            content = self._path.read_bytes()
            if content != self._content:
                return _taken_over(self._path, content)
            self._reopen()
        return None

    def _reopen(self) -> None:
        fd = os.open(self._path, os.O_RDONLY)
        os.dup2(fd, self._fd, inheritable=False)
        os.close(fd)


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


def _in_use(directory: pathlib.Path, seen: _Seen) -> ConfigError:
    return ConfigError(
        f"run_dir: {directory} is in use by {seen.owner or 'another process'}; wait for it, stop"
        f" it, or choose another run_dir (its lock: {directory / LOCK})"
    )


def _is_alive(path: pathlib.Path, seen: _Seen, on_message: Callable[[str], None]) -> bool:
    owner = seen.owner
    if owner is not None and owner.machine == _machine():
        return _is_running(owner)
    wait_s = _WATCHED_BEATS * _HEARTBEAT_S
    on_message(f"{path}: held by {owner or 'another process'}; watching it for up to {wait_s:g} s")
    for _ in range(_WATCHED_BEATS):
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
