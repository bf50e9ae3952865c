"""What decides the bits of a run, besides its config: machine, threads, variables, versions, code.

A run records it at its start, so that a run that is killed has it too.
"""

import functools
import os
import pathlib
import platform
import subprocess
import sys
import sysconfig
import zlib
from collections.abc import Mapping
from typing import Any

import jax

from sebulba.config.plugins import package_version
from sebulba.devices.variables import describe_variables
from sebulba.devices.xla_flags import num_cpu_threads, num_lapack_threads
from sebulba.process import start_daemon

PACKAGES = (
    "sebulba",
    "sebulba_agents",
    "jax",
    "jaxlib",
    "jax-cuda12-plugin",
    "jax-cuda13-plugin",
    "libtpu",
    "flax",
    "optax",
    "chex",
    "mctx",
    "numpy",
    "scipy",
    "ml_dtypes",
    "gymnasium",
    "envpool",
    "ale_py",
    "mujoco",
    "bsuite",
    "dm_control",
    "gymnax",
    "craftax",
    "jumanji",
    "pgx",
    "playground",
    "jaxmarl",
    "pettingzoo",
    "mpe2",
)
"""The packages whose versions a run records, as far as they are installed."""
JAX_SETTINGS = (
    "jax_platforms",
    "jax_num_cpu_devices",
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
    "jax_disable_most_optimizations",
    "jax_disable_jit",
)
"""The settings of JAX that decide bits, which a variable or a program may have set."""

_CPUINFO = pathlib.Path("/proc/cpuinfo")
_MAX_CPUINFO = 1 << 16  # bytes; it has a block for each core, and the first suffices
_GIT_TIMEOUT_S = 5.0
_MAX_CHANGED = 20


def describe_machine() -> dict[str, Any]:
    """Return the CPU, the threads of XLA and LAPACK, JAX's variables and settings, and versions."""
    return {
        "versions": {
            name: text for name in PACKAGES if (text := package_version(name)) is not None
        },
        "cpu": describe_cpu(),
        "threads": num_cpu_threads(),
        "lapack_threads": num_lapack_threads(),
        "environment": describe_variables(os.environ),
        "jax": {name: jax.config.values[name] for name in JAX_SETTINGS},
    }


@functools.cache
def describe_cpu() -> dict[str, str]:
    """Return the model of the first CPU, and its features: the words of /proc/cpuinfo."""
    fields: dict[str, str] = {}
    try:
        with open(_CPUINFO, encoding="utf-8", errors="replace") as file:
            first = file.read(_MAX_CPUINFO).partition("\n\n")[0]
        for line in first.splitlines():
            name, _, value = line.partition(":")
            fields[name.strip()] = value.strip()
    except OSError:  # not Linux
        pass
    of_arm = " ".join(fields[name] for name in ("CPU implementer", "CPU part") if name in fields)
    model = fields.get("model name") or of_arm or platform.processor() or platform.machine()
    return {"model": model, "features": fields.get("flags", fields.get("Features", ""))}


class CodeReading:
    """Reads in a thread of its own which code a run executes, while the run is being set up."""

    def __init__(self, sources: Mapping[str, str]):
        """Start to read.

        Args:
            sources: files of the modules that the config names, by these names.
        """
        self._code: dict[str, Any] = {}
        self._thread = start_daemon(lambda: self._read(sources), "code")

    def wait(self) -> dict[str, Any]:
        """Return the commit, the files that differ from it, and checksums of the sources.

        Also of the user's modules that are imported now, after environment and agent were made.
        """
        self._thread.join()
        return {**self._code, "modules": describe_modules()}

    def _read(self, sources: Mapping[str, str]) -> None:
        files = {name: crc32_of_file(path) for name, path in sources.items()}
        self._code = {**describe_code(), "files": files}


@functools.cache
def describe_code() -> dict[str, Any]:
    """Return the git commit of this package, what differs from it, and checksums of the sources.

    The commit is None outside of a git repository, or without git.
    """
    import sebulba
    import sebulba_agents

    packages = {module.__name__: module.__file__ or "" for module in (sebulba, sebulba_agents)}
    roots = {name: pathlib.Path(file).parent for name, file in packages.items()}
    commit = _git(roots["sebulba"], "rev-parse", "HEAD")
    changed = None
    if commit is not None:
        status = _git(roots["sebulba"], "status", "--porcelain", "--untracked-files=no") or ""
        changed = [line[3:] for line in status.splitlines()][:_MAX_CHANGED]
    return {
        "commit": commit,
        "changed": changed,
        "sources": {name: crc32_of_package(root) for name, root in roots.items()},
    }


def describe_modules() -> dict[str, str]:
    """Return the CRC32 of each imported module of the user's, by its name.

    Those are all that are neither part of Python or Sebulba, nor installed beside its packages.
    """
    import sebulba
    import sebulba_agents

    paths = sysconfig.get_paths()
    known = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    known |= {os.path.dirname(file) for m in (sebulba, sebulba_agents) if (file := m.__file__)}
    found = {}
    for name, module in sorted(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or not file.endswith(".py") or name == "__main__":
            continue
        is_known = "site-packages" in file or file.startswith(tuple(known))
        if not is_known and (crc32 := crc32_of_file(file)) is not None:
            found[name] = crc32
    return found


def crc32_of_package(root: pathlib.Path) -> str:
    """Return the CRC32 of all Python files below a directory, with their names, as hex digits."""
    crc = 0
    for directory, subdirectories, names in os.walk(root):
        subdirectories.sort()
        for name in sorted(names):
            if name.endswith(".py"):
                path = os.path.join(directory, name)
                crc = zlib.crc32(os.path.relpath(path, root).encode(), crc)
                with open(path, "rb") as file:
                    crc = zlib.crc32(file.read(), crc)
    return f"{crc:08x}"


def crc32_of_file(path: str) -> str | None:
    """Return the CRC32 of a file as hex digits; None: it cannot be read."""
    try:
        return f"{zlib.crc32(pathlib.Path(path).read_bytes()):08x}"
    except OSError:
        return None


def _git(directory: pathlib.Path, *arguments: str) -> str | None:
    """Return what git prints; None: it fails, is not installed, or takes too long."""
    try:
        done = subprocess.run(
            ["git", "-C", str(directory), *arguments],
            capture_output=True,
            text=True,
            timeout=_GIT_TIMEOUT_S,
            # `git status` would write to the repository.
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
            stdin=subprocess.DEVNULL,
            check=True,
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return done.stdout.strip("\n")
