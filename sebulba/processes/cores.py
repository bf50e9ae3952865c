"""CPU cores for several processes of one machine. Imports no jax."""

import contextlib
import os
from collections.abc import Iterator


def cores_of_process(
    number: int, *, num_processes: int, cores_per_process: int | None = None
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
