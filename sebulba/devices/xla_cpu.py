"""Workarounds for XLA's CPU backend; none changes a program for other platforms."""

import ctypes
import sys
from collections.abc import Sequence

import jax
import jaxlib.version

from sebulba.types import PyTree

# Parameters of glibc's mallopt.
_TRIM_THRESHOLD = -1
_TOP_PAD = -2
_MMAP_MAX = -4
_ARENA_MAX = -8

# Versions of jaxlib that know the option of `acting_options`.
_SCHEDULED_SINCE, _NOT_TRIED = (0, 10, 0), (0, 12, 0)

_KEEP_FREED_MEMORY = {
    _MMAP_MAX: 0,
    _TRIM_THRESHOLD: 2**31 - 1,
    _TOP_PAD: 64 << 20,
    # The arenas of other threads are too small for large blocks.
    _ARENA_MAX: 1,
}


def keep_freed_memory() -> bool:
    """Make glibc reuse large freed blocks; call before JAX starts its threads.

    XLA allocates the results and temporaries of every program. By default glibc unmaps large blocks
    and the kernel clears every page of the next one, which takes more than half of a convolutional
    update: with kept blocks, the network of DQN learns 2.06 times as fast (docs/benchmarks.md). In
    exchange all threads share one arena, so small networks may get slower.

    Returns:
        Whether the settings apply; False for other C libraries.
    """
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all(
        mallopt(name, value) for name, value in _KEEP_FREED_MEMORY.items()
    )


def bound_programs_in_flight(results: Sequence[PyTree]) -> None:
    """Wait for all but the newest of the results that were dispatched.

    On several CPU devices, more than 32 dispatched programs with collectives starve XLA's thread
    pool: the process aborts after 40 s ("Termination timeout"), or hangs if there are several. One
    program in the queue behind the running one keeps the devices busy.
    """
    if len(results) > 1:
        jax.block_until_ready(results[-2])


def acting_options(device: jax.Device) -> dict[str, bool] | None:
    """Return the compiler options, as `jax.jit` takes them, of programs that act on the device.

    XLA's schedule for a CPU keeps several operations ready at once, and wakes other threads for
    them. Writing a row and acting from it are many operations, which together take less time than
    the waking: without that schedule, a step of 16 CartPoles takes 110 instead of 145 µs of CPU
    time on two cores. Gradients of convolutions gain 3 to 8 % from it, and keep it.
    """
    is_known = _SCHEDULED_SINCE <= jaxlib.version.__version_info__ < _NOT_TRIED
    if device.platform != "cpu" or not is_known:
        return None
    return {"xla_cpu_enable_concurrency_optimized_scheduler": False}
