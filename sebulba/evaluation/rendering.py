"""Environments that draw themselves: how they are asked to, and whether they can here."""

import ctypes
import dataclasses
import json
import subprocess
import sys
import tempfile

from sebulba.config import EnvConfig
from sebulba.envs import without_workers
from sebulba.errors import ConfigError

_RENDER_OPTIONS = {
    "envpool": {"render_mode": "rgb_array"},
    "gymnasium": {"render_mode": "rgb_array"},
}
_OPENGL = "libEGL.so.1"
_DRAW = """
import contextlib, ctypes, json, sys
with contextlib.suppress(OSError):
    ctypes.CDLL(sys.argv[3], mode=ctypes.RTLD_GLOBAL)
import envpool
pool = envpool.make_gymnasium(sys.argv[1], num_envs=1, **json.loads(sys.argv[2]))
pool.reset()
pool.render(env_ids=0)
"""


def with_rendering(config: EnvConfig) -> EnvConfig:
    """Return the config of the same environment with rendering enabled, without worker processes.

    A worker process would have to send every frame.
    """
    options = config.options | _RENDER_OPTIONS.get(config.suite, {})
    return without_workers(dataclasses.replace(config, options=options))


def load_opengl() -> bool:
    """Loads what EnvPool's MuJoCo draws with, before EnvPool, which only looks when it is loaded.

    Returns:
        Whether it is there.
    """
    try:
        ctypes.CDLL(_OPENGL, mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    return True


def check_rendering(config: EnvConfig) -> None:
    """Checks that EnvPool can draw the environment here.

    In a process of its own: without an OpenGL context its MuJoCo ends the process instead of
    raising.

    Raises:
        ConfigError: it cannot.
    """
    if config.suite != "envpool":
        return
    options = json.dumps(with_rendering(config).options)
    command = [sys.executable, "-c", _DRAW, config.id, options, _OPENGL]
    with tempfile.TemporaryDirectory() as directory:
        drawn = subprocess.run(
            command, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
    if drawn.returncode:
        reason = (drawn.stdout.strip().splitlines() or [f"exit code {drawn.returncode}"])[-1]
        is_missing = "OpenGL" in reason and not load_opengl()
        advice = f"; it needs {_OPENGL}: on Debian, apt-get install libegl1" if is_missing else ""
        raise ConfigError(f"video: EnvPool cannot draw {config.id} here: {reason}{advice}")
