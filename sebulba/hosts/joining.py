"""The decisions of the hosts before the first learner cycle: run directory and checkpoint."""

import contextlib
import json
import os
import pathlib
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

from sebulba.config import Config
from sebulba.errors import ConfigError
from sebulba.hosts import connection as hosts
from sebulba.storage.checkpoints.restore import (
    CheckpointError,
    Which,
    best_step,
    steps_in,
    whole_steps,
)
from sebulba.storage.lock import RunLock, take_lock
from sebulba.storage.names import LOCK
from sebulba.storage.run_dir import (
    describe_devices,
    describe_software,
    directory_of_host,
    open_run_dir,
)
from sebulba.storage.shares import complete_steps, hosts_in, saved_by

_Resumed = TypeVar("_Resumed")
_SHARED_WITHIN_S = 20.0  # network file systems cache what was in a directory
_LOOK_AGAIN_S = 0.2
_NO_FIT = "no-fit: "  # begins the gathered text of an error whose `fits` is False


def open_run_dir_together(
    config: Config, *, on_message: Callable[[str], None]
) -> tuple[pathlib.Path, RunLock]:
    """Open the run directory on the first host; return it on all, with the lock of each's part.

    Raises:
        ConfigError: `open_run_dir` failed, another process uses a host's part, or configs, versions
            or devices differ; on every host.
    """
    if not hosts.are_several():
        return open_run_dir(config, on_message=on_message)
    # In this order: devices of other versions may not find each other.
    hosts.check_equal(describe_software(config))
    hosts.check_equal(describe_devices())
    opened, problem, mark, lock = pathlib.Path(), "", "", None
    if hosts.is_first():
        try:
            opened, lock = open_run_dir(config, on_message=on_message)
            mark = (opened / LOCK).read_text()
        except (ConfigError, OSError) as error:
            problem = str(error)
    # Gather a failure as well: a host that raised alone would leave the others waiting.
    problem, text, mark = json.loads(
        hosts.gather_texts(json.dumps((problem, str(opened), mark)))[0]
    )
    path = pathlib.Path(text)
    if not problem and lock is None:
        try:
            lock = _lock_own_part(path, mark, on_message)
        except (ConfigError, OSError) as error:
            problem = str(error)
    problems = list(filter(None, hosts.gather_texts(problem)))
    if lock is None or problems:
        if lock is not None:
            lock.release()
        raise ConfigError(problems[0])
    return path, lock


def _lock_own_part(path: pathlib.Path, mark: str, on_message: Callable[[str], None]) -> RunLock:
    """Make and lock this host's part of a run directory, in which the first host's lock must be.

    Raises:
        ConfigError: the hosts do not share the directory, or another process uses the part.
        OSError: it is not writable.
    """
    own = directory_of_host(path)
    own.mkdir(parents=True, exist_ok=True)
    if not has_lock(path, mark, within_s=_SHARED_WITHIN_S):
        for made in (own, own.parent, path):
            with contextlib.suppress(OSError):  # It holds something.
                made.rmdir()
        raise ConfigError(
            f"run_dir: expected a directory that all hosts share, but host {hosts.place()[0]} does"
            f" not see in {path} what host 0 has written there. Choose one on a shared file system"
            " with --run-dir"
        )
    return take_lock(own, on_message=on_message)


def has_lock(directory: pathlib.Path, content: str, *, within_s: float) -> bool:
    """Return whether a directory has, or within some seconds shows, the lock with this content."""
    deadline = time.monotonic() + within_s
    while True:
        with contextlib.suppress(OSError):
            os.listdir(directory)  # The client of a network file system looks again.
            if (directory / LOCK).read_text() == content:
                return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(_LOOK_AGAIN_S)


def resume_together(
    resume: Callable[[Which, int | None], _Resumed], directory: pathlib.Path, which: Which
) -> _Resumed:
    """Resume from a checkpoint that is complete, and return what `resume` returned.

    Args:
        resume: brings this host to a checkpoint with a number of hosts; None: as it says.
        directory: the first host's checkpoints.
        which: see `_choose_step`.

    Raises:
        CheckpointError: there is no such checkpoint, or a host cannot use it; on every host.
    """
    if not hosts.are_several() and hosts_in(directory) == [0]:
        return resume(which, None)
    step, num_hosts = _choose_step(directory, which)
    own = None
    try:
        resumed = resume(step, num_hosts)
    except CheckpointError as error:
        own = error
    # Gather a failure as well: a host that ended alone would look like one that is lost.
    problems = {
        number: text for number, text in enumerate(hosts.gather_texts(_describe(own))) if text
    }
    if problems:
        number, text = next(iter(problems.items()))
        fits = not any(text.startswith(_NO_FIT) for text in problems.values())
        raise CheckpointError(f"host {number}: {text.removeprefix(_NO_FIT)}", fits=fits) from own
    return resumed


def _describe(error: CheckpointError | None) -> str:
    if error is None:
        return ""
    # Which checkpoints are whole on all hosts is found later.
    return str(error).splitlines()[0] if error.fits else f"{_NO_FIT}{error}"


def newest_whole_step(directory: pathlib.Path) -> int | None:
    """Return the newest checkpoint that is whole on every host; every host must call this.

    `directory` is that of the first host's checkpoints.
    """
    if not hosts.are_several() and hosts_in(directory) == [0]:
        return next(whole_steps(directory), None)
    return max(complete_steps(_gather_saved(directory, whole_steps)), default=None)


def _gather_saved(
    directory: pathlib.Path, steps: Callable[[pathlib.Path], Iterable[int]] = steps_in
) -> dict[int, dict[int, int]]:
    """Return the shares of checkpoints on all hosts, those that an earlier run had included.

    Each host looks at its own directory, which others may see later on a shared file system.
    """
    own, num_hosts = hosts.place()
    seen = [each for each in hosts_in(directory) if each % num_hosts == own and each != own]
    saved: dict[int, dict[int, int]] = {}
    for text in hosts.gather_texts(json.dumps(saved_by(directory, [own, *seen], steps))):
        for number, shares in json.loads(text).items():
            saved[int(number)] = {int(step): count for step, count in shares.items()}
    return saved


def _choose_step(directory: pathlib.Path, which: Which) -> tuple[int, int]:
    """Return the checkpoint to resume from, of which all shares are there, and its hosts' number.

    `latest` is the newest complete checkpoint, `best` that of the first host.

    Raises:
        CheckpointError: there is no such checkpoint; on every host.
    """
    saved = _gather_saved(directory)
    complete = complete_steps(saved)
    wanted = which
    if which == "best":
        best = hosts.gather_texts(str(best_step(directory) or ""))[0]
        wanted = int(best) if best else which
    elif which == "latest" and complete:
        wanted = max(complete)
    if wanted not in complete:
        listing = "; ".join(
            f"host {number} has {', '.join(map(str, sorted(steps))) or 'none'}"
            for number, steps in sorted(saved.items())
        )
        raise CheckpointError(
            f"expected checkpoint {which!r} with the shares of all its hosts: {listing}"
        )
    return int(wanted), complete[int(wanted)]


def check_networks(networks_crc32: str | None) -> None:
    """Check that all hosts start from the same networks.

    Raises:
        ConfigError: a host has other networks than host 0; on every host.
    """
    if hosts.are_several():
        hosts.check_equal({"the networks' CRC32": str(networks_crc32)})
