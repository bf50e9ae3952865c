"""CPU cores for several processes of one machine. Imports no jax."""

import collections
import contextlib
import os
import random
import tempfile
import time
from collections.abc import Iterator

_MAX_TRIES, _PAUSE_S = 100, 0.02


def cores_of_process(
    number: int, *, num_processes: int, cores_per_process: int | None
) -> frozenset[int]:
    """Return the cores of one of several processes, which do not share them if there are enough.

    Args:
        number: of the process, from 0.
        num_processes: on this machine.
        cores_per_process: None: an equal part of this machine's, and at least one.
    """
    cores = sorted(os.sched_getaffinity(0))
    count = min(cores_per_process or max(1, len(cores) // num_processes), len(cores))
    return frozenset(cores[(number * count + i) % len(cores)] for i in range(count))


@contextlib.contextmanager
def on_cores_of_process(
    number: int, *, num_processes: int, cores_per_process: int | None = None
) -> Iterator[None]:
    """Let this thread, and the processes that it starts meanwhile, use some cores only.

    They are those of `cores_of_process`. Where a process cannot choose its cores, such as on macOS,
    it uses all.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    cores = cores_of_process(
        number, num_processes=num_processes, cores_per_process=cores_per_process
    )
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def take_least_used_cores(count: int) -> None:
    """Bind this process to the cores to which the fewest other processes are bound.

    For processes that do not know of each other, such as those that a scheduler starts on a
    machine. Where a process cannot choose its cores, such as on macOS, it uses all.
    """
    if not hasattr(os, "sched_setaffinity"):
        return
    ours = os.sched_getaffinity(0)
    num_bound: collections.Counter[int] = collections.Counter()
    with _one_at_a_time():
        for pid in filter(str.isdecimal, os.listdir("/proc")):
            with contextlib.suppress(OSError):  # It has ended.
                cores = os.sched_getaffinity(int(pid))
                num_bound.update(cores if cores < ours else ())
        # A container may share the machine's cores with others, whose processes it does not see: so
        # equal ones are drawn.
        order = random.sample(sorted(ours), len(ours))
        os.sched_setaffinity(0, sorted(order, key=num_bound.__getitem__)[:count])


@contextlib.contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Wait, for a few seconds at most, until no other process of this machine is in here."""
    import fcntl  # It is not on Windows.

    directory = os.open(tempfile.gettempdir(), os.O_RDONLY)
    try:
        for _ in range(_MAX_TRIES):
            try:
                fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                time.sleep(_PAUSE_S)
            else:
                break
        yield
    finally:
        os.close(directory)
