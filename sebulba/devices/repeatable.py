"""Kernels of NVIDIA's GPUs that compute the same bits in every run (docs/reproducibility.md)."""

import os
from typing import Literal

import jax
from jax._src.xla_bridge import backends_are_initialized

from sebulba.devices.xla_flags import VARIABLE, Flag, has_nvidia_gpu
from sebulba.errors import ConfigError

Kernels = Literal["repeatable", "fastest"]
"""repeatable: the same bits in every run. fastest: XLA measures and chooses, in every process."""

FLAGS = (
    # No kernel whose result depends on the order of atomic additions; it sorts them instead.
    Flag("xla_gpu_exclude_nondeterministic_ops", "true", since=(0, 10, 0), before=(0, 13, 0)),
    # Without tuning, the first algorithm that compiles. The tuner takes the fastest of a few
    # measurements, so processes differ, most of all those that start at the same time.
    Flag("xla_gpu_autotune_level", "0", since=(0, 10, 0), before=(0, 13, 0)),
)


def use_repeatable_kernels(setting: Literal["auto", "strict", "off"], *, is_exact: bool) -> str:
    """Ask XLA for repeatable kernels on NVIDIA's GPUs; call before JAX starts its backends.

    Changes nothing where JAX has no such GPU. A flag that the user has set is kept.

    Args:
        setting: `run.repeatable`.
        is_exact: whether everything else of the run is repeatable.

    Returns:
        Why kernels are not repeatable, though the run would be: a line of text; "" if there is no
        reason to warn.

    Raises:
        ConfigError: the same, with `strict`.
    """
    if not _has_gpu() or setting == "off" or not is_exact:
        return ""
    from jaxlib.version import __version_info__ as version

    problem = ""
    given = os.environ.get(VARIABLE, "")
    missing = [flag for flag in FLAGS if flag.name not in given]
    if missing and not _are_asked_for(given):
        if backends_are_initialized():
            # They would not be read, and programs would be cached under flags that they lack.
            problem = "JAX has started already, with other flags"
        elif not all(flag.suits(version) for flag in missing):
            problem = f"jaxlib {'.'.join(map(str, version))} was not tried with their flags"
        else:
            os.environ[VARIABLE] = " ".join([given, *map(str, missing)]).strip()
    given = os.environ.get(VARIABLE, "")
    if _are_asked_for(given):
        # XLA takes what the tuner chose for another run before it heeds the flags.
        jax.config.update("jax_persistent_cache_enable_xla_caches", "none")
        return ""
    problem = problem or f"{VARIABLE} is {given!r}"
    text = (
        f"run.repeatable {setting}: expected kernels of the GPU that compute the same bits in every"
        f" run, but {problem}. Start with {VARIABLE}='{' '.join(map(str, FLAGS))}', or set"
        " run.repeatable off"
    )
    if setting == "strict":
        raise ConfigError(text)
    return f"warning: {text}"


def kernels_of_gpu() -> Kernels | None:
    """Return how XLA chooses kernels in this process; None: JAX has no GPU."""
    if all(device.platform != "gpu" for device in jax.local_devices()):
        return None
    return "repeatable" if _are_asked_for(os.environ.get(VARIABLE, "")) else "fastest"


def _has_gpu() -> bool:
    return has_nvidia_gpu() and jax.config.values["jax_platforms"] != "cpu"


def _are_asked_for(given: str) -> bool:
    words = given.split()
    # Includes the others.
    of_user = {"--xla_gpu_deterministic_ops", "--xla_gpu_deterministic_ops=true"}
    return all(str(flag) in words for flag in FLAGS) or not of_user.isdisjoint(words)
