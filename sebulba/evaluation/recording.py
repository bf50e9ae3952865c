"""An environment that keeps its pictures while an evaluation plays in it."""

import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from sebulba.envs.base import Environment, FusedEnvironment, RenderedEnvironment
from sebulba.envs.lookup import first_line
from sebulba.errors import ConfigError
from sebulba.evaluation.video import INSTALL
from sebulba.types import EnvStep, PyTree

_MOST_FRAMES = 30_000


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
            raise ConfigError(
                f"video: rendering failed: {first_line(error)}. Packages: {INSTALL}; for MuJoCo"
                " also 'sebulba[mujoco]', with MUJOCO_GL=egl on a machine without a display"
            ) from error
        if frame is None or frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[-1] != 3:
            got = "None" if frame is None else f"{frame.dtype}{list(frame.shape)}"
            raise ConfigError(f"video: expected a picture uint8[H, W, 3], got {got}")
        return frame
