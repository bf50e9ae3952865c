"""An environment wrapper that records frames during an evaluation."""

import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from sebulba.envs.base import Environment, FusedEnvironment, RenderedEnvironment, RenderedMoves
from sebulba.envs.lookup import first_line
from sebulba.errors import ConfigError
from sebulba.evaluation.video import INSTALL
from sebulba.types import EnvStep, PyTree

_MAX_FRAMES = 30_000


class Recording:
    """An environment wrapper that records the first environment's first episodes.

    An episode of `n` env steps has `n + 1` frames, the first one from its reset, and more if it
    shows several moves of a step. That of several players ends with the last of them.
    """

    def __init__(self, environment: Environment, *, episodes: int, max_frames: int = _MAX_FRAMES):
        """Wrap an environment before its reset.

        Raises:
            ConfigError: the environment cannot be rendered.
        """
        if not isinstance(environment, RenderedEnvironment):
            raise ConfigError(
                f"video: {type(environment).__name__} cannot be rendered; expected an adapter with"
                " `render() -> uint8 [H, W, 3]`"
            )
        self.num_envs = environment.num_envs
        self.spec = environment.spec
        self.is_truncated = False  # whether recording stopped at the frame limit
        self._environment: Any = environment
        self._episodes_left = episodes
        self._max_frames = max_frames
        self._frames: list[tuple[tuple[int, ...], bytes]] = []

    def reset(self) -> EnvStep:
        """Start all episodes; see `Environment.reset`."""
        env_step = self._environment.reset()
        self._record(env_step)
        return env_step

    def step(self, action: PyTree) -> EnvStep:
        """Step all environments; see `Environment.step`."""
        env_step = self._environment.step(action)
        if self._episodes_left > 0:
            self._record(env_step)
        return env_step

    def fused(self) -> FusedEnvironment | None:
        """Return None: frames are rendered between steps, from Python."""
        return None

    def settings(self) -> dict[str, Any]:
        """Return the wrapped environment's settings."""
        return getattr(self._environment, "settings", dict)()

    def close(self) -> None:
        """Release the environment; the frames stay available."""
        self._environment.close()

    def frames(self) -> Iterator[np.ndarray]:
        """Yield the frames, uint8 `[H, W, 3]`."""
        for shape, data in self._frames:
            yield np.frombuffer(zlib.decompress(data), np.uint8).reshape(shape)

    def _record(self, env_step: EnvStep) -> None:
        if len(self._frames) >= self._max_frames:
            self.is_truncated, self._episodes_left = True, 0
            return
        for frame in self._render():
            # Compression takes an Atari frame from 100 KiB to 3 KiB, so long episodes fit into
            # memory.
            data = np.ascontiguousarray(frame).tobytes()
            self._frames.append((frame.shape, zlib.compress(data, level=1)))
        over = env_step.done if env_step.episode_over is None else env_step.episode_over
        self._episodes_left -= int(over[: self.spec.num_players].all())

    def _render(self) -> list[np.ndarray]:
        environment = self._environment
        try:
            is_of_moves = isinstance(environment, RenderedMoves)
            frames = environment.frames() if is_of_moves else [environment.render()]
        except ConfigError:
            raise
        # Renderers raise errors of any type if a display, driver or package is missing.
        except Exception as error:
            raise ConfigError(
                f"video: rendering failed: {first_line(error)}. Packages: {INSTALL}; for MuJoCo"
                " also 'sebulba[mujoco]', with MUJOCO_GL=egl on a machine without a display"
            ) from error
        for frame in frames:
            if frame is None or frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[-1] != 3:
                got = "None" if frame is None else f"{frame.dtype}{list(frame.shape)}"
                raise ConfigError(
                    f"video: expected a frame uint8[H, W, 3], got {got}; fix render()"
                )
        return frames
