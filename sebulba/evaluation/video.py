"""Episodes as a moving picture: recorded while they are evaluated, written as GIF or mp4."""

import contextlib
import ctypes
import dataclasses
import importlib
import itertools
import json
import pathlib
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from sebulba.config import EnvConfig
from sebulba.envs.base import Environment, FusedEnvironment, RenderedEnvironment
from sebulba.errors import ConfigError
from sebulba.types import EnvStep, PyTree

FORMATS = {".gif": ("PIL", "pillow"), ".mp4": ("imageio_ffmpeg", "imageio-ffmpeg")}
"""The module that writes a format, and the package that it comes from."""

_RENDER_OPTIONS = {
    "envpool": {"render_mode": "rgb_array"},
    "gymnasium": {"render_mode": "rgb_array"},
}
_INSTALL = "pip install 'sebulba[video]'"
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
_MOST_FRAMES = 30_000
_LEAST_WIDTH = 240  # pixels; pictures of a pixel a cell are enlarged


def with_rendering(config: EnvConfig) -> EnvConfig:
    """Returns the config of the same environment with pictures.

    It is played in processes of this one: other processes would send every picture.
    """
    options = config.options | _RENDER_OPTIONS.get(config.suite, {})
    if config.suite == "gymnasium" and options.get("vectorization_mode") == "async":
        options = options | {"vectorization_mode": "sync", "vector_kwargs": {}}
    return dataclasses.replace(config, options=options)


def check_format(path: str | pathlib.Path) -> None:
    """Checks that a video can be written to `path`, before anything is played.

    Raises:
        ConfigError: no such format, or what writes it is not installed.
    """
    suffix = pathlib.Path(path).suffix.lower()
    if suffix not in FORMATS:
        raise ConfigError(f"video: expected a file that ends in .gif or .mp4, got {path}")
    module, package = FORMATS[suffix]
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(f"video: {suffix} needs {package}: {_INSTALL}") from error


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


class Recording:
    """An environment that keeps the pictures of its first environment's first episodes.

    An episode of `n` env steps has `n + 1` pictures, the first one of its reset.
    """

    def __init__(self, environment: Environment, *, episodes: int):
        """Wraps an environment that has not been reset.

        Raises:
            ConfigError: the environment has no pictures.
        """
        if not isinstance(environment, RenderedEnvironment):
            raise ConfigError(
                f"video: {type(environment).__name__} has no pictures: expected an adapter with"
                " `render() -> uint8 [H, W, 3]`"
            )
        self.num_envs = environment.num_envs
        self.spec = environment.spec
        self.is_cut = False  # there were more pictures than are kept
        self._environment: Any = environment
        self._episodes_left = episodes
        self._frames: list[tuple[tuple[int, ...], bytes]] = []

    def reset(self) -> EnvStep:
        """Starts all episodes; see `Environment.reset`."""
        env_step = self._environment.reset()
        self._record(env_step)
        return env_step

    def step(self, action: PyTree) -> EnvStep:
        """Steps all environments; see `Environment.step`."""
        env_step = self._environment.step(action)
        if self._episodes_left > 0:
            self._record(env_step)
        return env_step

    def fused(self) -> FusedEnvironment | None:
        """Returns None: pictures are taken between steps."""
        return None

    def settings(self) -> dict[str, Any]:
        """Returns the wrapped environment's."""
        return getattr(self._environment, "settings", dict)()

    def close(self) -> None:
        """Releases the environment; the pictures stay."""
        self._environment.close()

    def frames(self) -> Iterator[np.ndarray]:
        """Yields the pictures, uint8 `[H, W, 3]`."""
        for shape, data in self._frames:
            yield np.frombuffer(zlib.decompress(data), np.uint8).reshape(shape)

    def _record(self, env_step: EnvStep) -> None:
        if len(self._frames) == _MOST_FRAMES:
            self.is_cut, self._episodes_left = True, 0
            return
        frame = np.ascontiguousarray(self._picture())
        # An Atari game's 100 KiB become 3, so that the longest fit into memory.
        self._frames.append((frame.shape, zlib.compress(frame.tobytes(), level=1)))
        over = env_step.done if env_step.episode_over is None else env_step.episode_over
        self._episodes_left -= int(over[0])

    def _picture(self) -> np.ndarray:
        try:
            frame = self._environment.render()
        except ConfigError:
            raise
        # Renderers raise what they like where a display, a driver or a package is missing.
        except Exception as error:
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise ConfigError(
                f"video: the environment gives no picture: {reason} (packages: {_INSTALL},"
                " and 'sebulba[mujoco]' for MuJoCo, with MUJOCO_GL=egl where there is no display)"
            ) from error
        if frame is None or frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[-1] != 3:
            got = "None" if frame is None else f"{frame.dtype}{list(frame.shape)}"
            raise ConfigError(f"video: expected a picture uint8[H, W, 3], got {got}")
        return frame


def write_video(path: str | pathlib.Path, frames: Iterator[np.ndarray], *, fps: float) -> int:
    """Writes pictures of one size, and returns how many.

    Args:
        path: ends in `.gif` or `.mp4`; replaced if it is there.
        frames: uint8 `[H, W, 3]`, at least one; small ones are enlarged by a whole number.
        fps: pictures a second; a GIF holds them in hundredths of a second.

    Raises:
        OSError: the file could not be written.
    """
    check_format(path)
    enlarged = (_enlarge(frame) for frame in frames)
    write = _write_mp4 if pathlib.Path(path).suffix.lower() == ".mp4" else _write_gif
    return write(str(path), enlarged, fps)


def _enlarge(frame: np.ndarray) -> np.ndarray:
    factor = -(-_LEAST_WIDTH // frame.shape[1]) if frame.shape[1] < _LEAST_WIDTH // 2 else 1
    return frame.repeat(factor, axis=0).repeat(factor, axis=1)


def _write_gif(path: str, frames: Iterator[np.ndarray], fps: float) -> int:
    from PIL import Image

    count = 0

    def images() -> Iterator[Image.Image]:
        nonlocal count
        for frame in frames:
            count += 1
            yield Image.fromarray(frame)

    sequence = images()
    first = next(sequence)
    # Pillow merges equal pictures that follow each other, and adds their durations up.
    first.save(
        path,
        format="GIF",
        save_all=True,
        append_images=sequence,
        duration=max(20, 10 * round(100 / fps)),
        loop=0,
    )
    return count


def _write_mp4(path: str, frames: Iterator[np.ndarray], fps: float) -> int:
    import imageio_ffmpeg

    first = next(frames)
    height, width, _ = first.shape
    # Not by `imageio_ffmpeg.write_frames`, which forks: JAX has threads, and warns.
    command = [
        *[imageio_ffmpeg.get_ffmpeg_exe(), "-y", "-loglevel", "error"],
        *["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}"],
        *["-r", str(fps), "-i", "-"],
        # H.264 takes even sizes only.
        *["-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2", "-pix_fmt", "yuv420p", path],
    ]
    count = 0
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as ffmpeg:
        assert ffmpeg.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # It ended, and says why.
            for frame in itertools.chain([first], frames):
                ffmpeg.stdin.write(np.ascontiguousarray(frame).data)
                count += 1
        _, message = ffmpeg.communicate()
    if ffmpeg.returncode:
        raise OSError(f"{path}: {message.decode(errors='replace').strip()}")
    return count
