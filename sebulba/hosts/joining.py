"""The decisions of the hosts before the first learner cycle: run directory and checkpoint."""

import pathlib
from collections.abc import Callable

from sebulba.config import Config
from sebulba.errors import ConfigError
from sebulba.hosts import connection as hosts
from sebulba.storage.checkpoints.restore import CheckpointError, Which, best_step, steps_in
from sebulba.storage.lock import RunLock, take_lock
from sebulba.storage.run_dir import describe_host, directory_of_host, open_run_dir


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


def choose_step(directory: pathlib.Path, which: Which) -> Which:
    """Return the checkpoint to resume from, which every host has.

    `latest` is the newest common checkpoint, `best` that of the first host.

    Raises:
        CheckpointError: a host lacks the checkpoint; on every host.
    """
    if not hosts.are_several():
        return which
    own = " ".join(map(str, steps_in(directory)))
    every = [set(map(int, text.split())) for text in hosts.gather_texts(own)]
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
