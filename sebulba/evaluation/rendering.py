"""Enabling an environment's rendering, and checking that it works on this machine."""

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
    "pettingzoo": {"render_mode": "rgb_array"},
}
_OPENGL = "libEGL.so.1"
_RENDER_SCRIPT = """
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
    """Load the OpenGL library of EnvPool's MuJoCo; call before an environment of it is made.

    Returns:
        Whether the library exists.
    """
    try:
        ctypes.CDLL(_OPENGL, mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    return True


def check_rendering(config: EnvConfig) -> None:
    """Check that EnvPool can render the environment on this machine.

    Runs in a subprocess, since EnvPool's MuJoCo exits the process if it has no OpenGL context.

    Raises:
        ConfigError: EnvPool cannot render it.
    """
    if config.suite != "envpool":
        return
    options = json.dumps(with_rendering(config).options)
    command = [sys.executable, "-c", _RENDER_SCRIPT, config.id, options, _OPENGL]
    with tempfile.TemporaryDirectory() as directory:
        result = subprocess.run(
            command, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
    if result.returncode:
        reason = (result.stdout.strip().splitlines() or [f"exit code {result.returncode}"])[-1]
        is_missing = "OpenGL" in reason and not load_opengl()
        advice = f"; install {_OPENGL} (Debian: apt-get install libegl1)" if is_missing else ""
        raise ConfigError(f"video: EnvPool cannot render {config.id}: {reason}{advice}")
