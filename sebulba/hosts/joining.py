"""The decisions of the hosts before the first learner cycle: run directory and checkpoint."""

import pathlib
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
from sebulba.storage.run_dir import describe_host, directory_of_host, open_run_dir

_Resumed = TypeVar("_Resumed")
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
    hosts.check_equal(describe_host(config))
    path, problem, lock = pathlib.Path(), "", None
    if hosts.is_first():
        try:
            path, lock = open_run_dir(config, on_message=on_message)
        except ConfigError as error:
            problem = str(error)
    # Gather a failure as well: a host that raised alone would leave the others waiting.
    problem = hosts.gather_texts(problem)[0]
    path = pathlib.Path(hosts.gather_texts(str(path))[0])
    if not problem and lock is None:
        try:
            directory_of_host(path).mkdir(parents=True, exist_ok=True)
            lock = take_lock(directory_of_host(path), on_message=on_message)
        except (ConfigError, OSError) as error:
            problem = str(error)
    problems = list(filter(None, hosts.gather_texts(problem)))
    if lock is None or problems:
        if lock is not None:
            lock.release()
        raise ConfigError(problems[0])
    return path, lock


def resume_together(
    resume: Callable[[Which], _Resumed], directory: pathlib.Path, which: Which
) -> _Resumed:
    """Resume from a checkpoint that every host has, and return what `resume` returned.

    Args:
        resume: brings this host to a checkpoint.
        directory: of this host's checkpoints.
        which: as for `_choose_step`.

    Raises:
        CheckpointError: a host lacks the checkpoint, or cannot use it; on every host.
    """
    if not hosts.are_several():
        return resume(which)
    step = _choose_step(directory, which)
    own = None
    try:
        resumed = resume(step)
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
    """Return the newest checkpoint that is whole on every host; a collective like the others."""
    if not hosts.are_several():
        return next(whole_steps(directory), None)
    return max(set.intersection(*_gather_steps(whole_steps(directory))), default=None)


def _gather_steps(own: Iterable[int]) -> list[set[int]]:
    every = hosts.gather_texts(" ".join(map(str, own)))
    return [{int(step) for step in text.split()} for text in every]


def _choose_step(directory: pathlib.Path, which: Which) -> Which:
    """Return the checkpoint to resume from, which every host has.

    `latest` is the newest common checkpoint, `best` that of the first host.

    Raises:
        CheckpointError: a host lacks the checkpoint; on every host.
    """
    every = _gather_steps(steps_in(directory))
    common = set.intersection(*every)
    wanted = which
    if which == "best":
        best = hosts.gather_texts(str(best_step(directory) or ""))[0]
        wanted = int(best) if best else which
    elif which == "latest" and common:
        wanted = max(common)
    if wanted not in common:
        listing = "; ".join(
            f"host {number} has {', '.join(map(str, sorted(steps))) or 'none'}"
            for number, steps in enumerate(every)
        )
        raise CheckpointError(
            f"expected checkpoint {which!r} on each of the {len(every)} hosts: {listing}"
        )
    return wanted


def check_networks(networks_crc32: str | None) -> None:
    """Check that all hosts start from the same networks.

    Raises:
        ConfigError: a host has other networks than host 0; on every host.
    """
    if hosts.are_several():
        hosts.check_equal({"the networks' CRC32": str(networks_crc32)})
