"""The decisions of the hosts before the first learner cycle: run directory and checkpoint."""

import pathlib

from sebulba.config import Config
from sebulba.errors import ConfigError
from sebulba.hosts import connection as hosts
from sebulba.storage.checkpoints.restore import CheckpointError, Which, best_step, steps_in
from sebulba.storage.run_dir import describe_host, directory_of_host, open_run_dir


def open_run_dir_together(config: Config) -> pathlib.Path:
    """Open the run directory on the first host, and return it on all.

    Raises:
        ConfigError: `open_run_dir` failed, or configs, versions or devices differ; on every host.
    """
    if not hosts.are_several():
        return open_run_dir(config)
    hosts.check_equal(describe_host(config))
    path, problem = "", ""
    if hosts.is_first():
        try:
            path = str(open_run_dir(config))
        except ConfigError as error:
            problem = str(error)
    # Gather the failure as well: a host that raised alone would leave the others waiting.
    if problem := hosts.gather_texts(problem)[0]:
        raise ConfigError(problem)
    shared = pathlib.Path(hosts.gather_texts(path)[0])
    directory_of_host(shared).mkdir(parents=True, exist_ok=True)
    return shared


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
