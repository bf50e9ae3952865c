"""Writing frames to a GIF or mp4 file, and showing it in a notebook."""

import base64
import contextlib
import importlib
import itertools
import os
import pathlib
import subprocess
from collections.abc import Iterator

import numpy as np

from sebulba.errors import ConfigError
from sebulba.storage.run_dir import shown_path

FORMATS = {".gif": ("PIL", "pillow"), ".mp4": ("imageio_ffmpeg", "imageio-ffmpeg")}
"""The module that writes each format, and its package."""

INSTALL = "pip install 'sebulba[video]'"
"""The command that installs the packages of all formats."""

_MIN_WIDTH = 240  # pixels; gridworld frames with one pixel per cell are enlarged


class Video(os.PathLike[str]):
    """A video file, which a notebook shows; a path for functions that open files."""

    def __init__(self, path: str | os.PathLike[str]):
        self.path = pathlib.Path(path)

    def __fspath__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        return f"Video({shown_path(self.path)!r})"

    def _repr_html_(self) -> str:
        # The notebook holds the file, since its page may not read this machine's files.
        data = base64.b64encode(self.path.read_bytes()).decode()
        style = "style='max-height: 320px'"
        if self.path.suffix.lower() == ".gif":
            return f"<img alt='episodes' {style} src='data:image/gif;base64,{data}'>"
        return f"<video controls loop {style} src='data:video/mp4;base64,{data}'></video>"


def check_format(path: str | pathlib.Path) -> None:
    """Check that a video can be written to `path`.

    Raises:
        ConfigError: the format is not supported, or its package is not installed.
    """
    suffix = pathlib.Path(path).suffix.lower()
    if suffix not in FORMATS:
        raise ConfigError(f"video: expected a file name that ends in .gif or .mp4, got {path}")
    module, package = FORMATS[suffix]
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(f"video: {suffix} needs {package}: {INSTALL}") from error


def write_video(path: str | pathlib.Path, frames: Iterator[np.ndarray], *, fps: float) -> int:
    """Write frames of one size to a file, and return their number.

    Args:
        path: a name that ends in `.gif` or `.mp4`; an existing file is replaced.
        frames: uint8 `[H, W, 3]`, at least one; small frames are enlarged by an integer factor.
        fps: frames per second; a GIF rounds a frame's duration to 1/100 s.

    Raises:
        OSError: the file could not be written.
    """
    check_format(path)
    enlarged = (_enlarge(frame) for frame in frames)
    write = _write_mp4 if pathlib.Path(path).suffix.lower() == ".mp4" else _write_gif
    return write(str(path), enlarged, fps)


def _enlarge(frame: np.ndarray) -> np.ndarray:
    factor = -(-_MIN_WIDTH // frame.shape[1]) if frame.shape[1] < _MIN_WIDTH // 2 else 1
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
    # Pillow merges equal consecutive frames and adds up their durations.
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
    # `imageio_ffmpeg.write_frames` would fork, and forking with JAX's threads can deadlock.
    command = [
        *[imageio_ffmpeg.get_ffmpeg_exe(), "-y", "-loglevel", "error"],
        *["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}"],
        *["-r", str(fps), "-i", "-"],
        # H.264 with yuv420p requires an even width and height.
        *["-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2", "-pix_fmt", "yuv420p", path],
    ]
    count = 0
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as ffmpeg:
        assert ffmpeg.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # ffmpeg has failed; its stderr says why.
            for frame in itertools.chain([first], frames):
                ffmpeg.stdin.write(np.ascontiguousarray(frame).data)
                count += 1
        _, message = ffmpeg.communicate()
    if ffmpeg.returncode:
        raise OSError(f"{path}: {message.decode(errors='replace').strip()}")
    return count
