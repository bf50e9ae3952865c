"""The checkpoints of a run on several hosts: each host saves its share in its own directory.

A run that is resumed on fewer hosts leaves the directories of the others behind, so each share says
how many hosts its checkpoint has.
"""

import pathlib
from collections.abc import Callable, Iterable, Mapping

import jax

from sebulba.storage.checkpoints.restore import CheckpointError, read_meta, steps_in
from sebulba.storage.names import HOSTS
from sebulba.storage.run_dir import directory_of_host

Saved = Mapping[int, Mapping[int, int]]
"""By host and step: the number of hosts of the checkpoint that the host has a share of."""


def share_of(directory: pathlib.Path, host: int) -> pathlib.Path:
    """Return the directory of a host's shares, given that of the first host's."""
    return directory_of_host(directory.parent, host) / directory.name


def num_hosts_of(share: pathlib.Path, step: int) -> int:
    """Return the number of hosts of a checkpoint; of a damaged one, that of this run."""
    try:
        return read_meta(share, step).get("hosts", 1)
    except CheckpointError:
        return jax.process_count()


def hosts_in(directory: pathlib.Path) -> list[int]:
    """Return the hosts that have a directory, given that of the first host's checkpoints."""
    others = (directory.parent / HOSTS).glob("[0-9]*")
    return [0, *sorted(int(path.name) for path in others if path.name.isdecimal())]


def saved_by(
    directory: pathlib.Path,
    hosts: Iterable[int],
    steps: Callable[[pathlib.Path], Iterable[int]] = steps_in,
) -> dict[int, dict[int, int]]:
    """Return the shares that hosts have.

    Args:
        directory: of the first host's checkpoints.
        hosts: their numbers.
        steps: returns the checkpoints in a directory that count.
    """
    shares = {host: share_of(directory, host) for host in hosts}
    return {
        host: {step: num_hosts_of(share, step) for step in steps(share)}
        for host, share in shares.items()
    }


def complete_steps(saved: Saved) -> dict[int, int]:
    """Return the checkpoints of which every host has its share, and their numbers of hosts.

    Hosts that `saved` lacks do not count.
    """
    return {
        step: num_hosts
        for step, num_hosts in sorted(saved[0].items())
        if all(saved[host].get(step) == num_hosts for host in saved if host < num_hosts)
    }
