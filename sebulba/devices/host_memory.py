"""What becomes of large blocks of host memory when they are freed. Imports no jax."""

import ctypes
import sys

# Parameters of glibc's mallopt.
_TRIM_THRESHOLD = -1
_TOP_PAD = -2
_MMAP_MAX = -4
_ARENA_MAX = -8

_KEPT = {
    _MMAP_MAX: 0,
    _TRIM_THRESHOLD: 2**31 - 1,
    _TOP_PAD: 64 << 20,
    # The arenas of other threads are too small for large blocks.
    _ARENA_MAX: 1,
}


def keep_large_blocks() -> bool:
    """Makes glibc keep large blocks that are freed, for the next that is asked for.

    By default it gives them back to the kernel, which clears every page of the next one. On a CPU,
    XLA allocates the results and temporaries of each program anew: more than half of a
    convolutional update can go into that. All threads share one arena afterwards, so programs with
    many small allocations may get slower. To be called before JAX starts its threads.

    Returns:
        Whether it is so: another C library is left as it is.
    """
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all(mallopt(name, value) for name, value in _KEPT.items())
