"""XLA settings that make programs on a CPU fast and right. Imports no jax."""

import importlib.util
import os
from typing import NamedTuple  # A dataclass would add a tenth to the time of `sebulba --help`.

VARIABLE = "XLA_FLAGS"
NUM_THREADS = "PJRT_NPROC"
"""Environment variable: the threads of XLA's CPU backend."""
LAPACK_THREADS = "OPENBLAS_NUM_THREADS"
"""Environment variable: the threads of LAPACK, at most as many as there are cores."""


class Flag(NamedTuple):
    """A flag, and the versions of jaxlib that know it: XLA ends the process at an unknown one."""

    name: str
    value: str
    since: tuple[int, ...]
    before: tuple[int, ...]  # the first version that it was not tried with

    def suits(self, version: tuple[int, ...]) -> bool:
        """Return whether a version of jaxlib knows the flag."""
        return self.since <= version < self.before

    def __str__(self) -> str:
        return f"--{self.name}={self.value}"


_KERNELS = "xla_cpu_experimental_ynn_fusion_type"
FLAGS = (
    # What YNNPACK is not to compute. Its convolutions are 3 to 4 times slower than XLA's own. Its
    # reductions lose rows or crash in jaxlib 0.10.2 (jax issues 39103 and 40412), so there
    # `sebulba.toolkit.sums` has others; later ones are right, and faster than XLA's own.
    Flag(_KERNELS, "-individual_convolution,-reduce", since=(0, 10, 0), before=(0, 11, 0)),
    Flag(_KERNELS, "-individual_convolution", since=(0, 11, 0), before=(0, 13, 0)),
)


def set_xla_flags() -> None:
    """Add the flags to the environment; call before JAX starts its backends.

    Where `XLA_FLAGS` is the name of a file, it gets the file's contents: XLA would take a name with
    flags behind it for another name.

    Adds no flag whose name is in `XLA_FLAGS`, which the user decides on. JAX's plugins for NVIDIA's
    GPUs are built with jaxlib and know its flags, which change no program for a GPU but those of
    actors on the CPU beside it. Other plugins may have their own list of known flags, and end the
    process at another one.
    """
    given = os.environ.get(VARIABLE, "").strip()
    if given and not given.startswith("-"):
        try:
            with open(given, encoding="utf-8") as file:
                os.environ[VARIABLE] = given = " ".join(file.read().split())
        except (OSError, UnicodeDecodeError):
            return  # XLA ends the process, and names the file.
    if not (_runs_on_cpu() or _has_only_cuda()):
        return
    from jaxlib.version import __version_info__ as version  # Without jax, quick to import.

    missing = [str(flag) for flag in FLAGS if flag.name not in given and flag.suits(version)]
    if missing:
        os.environ[VARIABLE] = " ".join([given, *missing]).strip()


def num_cpu_threads() -> int:
    """Return the threads that XLA's CPU backend of this process has; they decide some bits."""
    for name in (NUM_THREADS, "NPROC"):
        if (text := os.environ.get(name, "")).isdecimal() and int(text):
            return int(text)
    return _num_cores()


def num_lapack_threads() -> int:
    """Return the threads of OpenBLAS, with which JAX decomposes matrices on a CPU.

    They decide bits of initial networks whose kernels are large orthogonal matrices.
    """
    for name in (LAPACK_THREADS, "GOTO_NUM_THREADS", "OMP_NUM_THREADS"):
        if (text := os.environ.get(name, "")).isdecimal() and int(text):
            return min(int(text), _num_cores())
    return _num_cores()


def _num_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def set_num_cpu_threads(*, num_devices: int) -> None:
    """Give XLA a second thread on a host with one core; call before JAX starts its backends.

    XLA starts as many threads as there are cores. With a single one, an update that waits for
    other hosts slows acting down: two hosts with one core each, whose environments wait, made 6,000
    to 9,000 env steps/s, and 10,600 with a second thread. A value of the user's is kept.

    Args:
        num_devices: CPU devices of this process; it gets a thread more than these, if it has no
            more cores than these.
    """
    if _num_cores() <= num_devices and _runs_on_cpu():
        os.environ.setdefault(NUM_THREADS, str(num_devices + 1))


def describe_xla_flags() -> str:
    """Return the flags of this process, for its log; empty if there are none."""
    given = os.environ.get(VARIABLE, "")
    return f"{VARIABLE}={given!r}" if given else ""


def has_accelerator() -> bool:
    """Return whether JAX can use an accelerator: its plugin is installed, and the device is here.

    Of NVIDIA's GPUs, the driver's files say it. Other plugins are taken at their word.
    """
    if _runs_on_cpu():
        return False
    return not _has_only_cuda() or os.path.exists("/dev/nvidiactl") or os.path.exists("/dev/dxg")


def has_nvidia_gpu() -> bool:
    """Return whether JAX can use an NVIDIA GPU, and no other accelerator."""
    return has_accelerator() and _has_only_cuda()


def _has_only_cuda() -> bool:
    """Return whether all plugins of JAX that are installed are those for NVIDIA's GPUs."""
    if importlib.util.find_spec("libtpu") is not None:
        return False
    plugins = importlib.util.find_spec("jax_plugins")
    places = plugins.submodule_search_locations if plugins is not None else None
    names = {name for place in places or () for name in os.listdir(place) if name[0] not in "_."}
    return all(name.startswith("xla_cuda") for name in names)


def _runs_on_cpu() -> bool:
    """Return whether JAX can use no other platform."""
    if platforms := os.environ.get("JAX_PLATFORMS"):
        return platforms == "cpu"
    return not any(map(importlib.util.find_spec, ("jax_plugins", "libtpu")))
