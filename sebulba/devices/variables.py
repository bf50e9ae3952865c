"""Environment variables that JAX and XLA read. Imports no jax."""

from collections.abc import Mapping

from sebulba.devices.xla_flags import NUM_THREADS, VARIABLE

_PREFIXES = ("JAX_", "XLA_", "PJRT_")
_OTHERS = ("NPROC", "LIBTPU_INIT_ARGS", "NVIDIA_TF32_OVERRIDE", "TF32_OVERRIDE")
_SECRET = ("KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIAL")
# They decide no bits, or are compared by what they do: threads, devices and flags.
_WITHOUT_EFFECT = (
    "JAX_COMPILATION_CACHE",
    "JAX_PERSISTENT_CACHE",
    "JAX_ENABLE_COMPILATION_CACHE",
    "JAX_COORDINATOR",
    "JAX_LOCAL_DEVICE_IDS",
    "JAX_TRACEBACK",
    "JAX_LOG",
    "JAX_PLATFORMS",
    "XLA_PYTHON_CLIENT",
    "XLA_CLIENT_MEM",
    VARIABLE,
    NUM_THREADS,
    "NPROC",
)


def is_read(name: str) -> bool:
    """Return whether JAX or XLA may read a variable."""
    return name.startswith(_PREFIXES) or name in _OTHERS


def decides_bits(name: str) -> bool:
    """Return whether a variable that is read may change the numbers of a run."""
    return not name.startswith(_WITHOUT_EFFECT)


def describe_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that are read, except those whose name is that of a secret."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if is_read(name) and not any(word in name for word in _SECRET)
    }
