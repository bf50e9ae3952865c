"""What an evaluation during training leaves: rows in every logger, and a video."""

import contextlib
import dataclasses
import pathlib
from collections.abc import Callable

from sebulba.config import EnvConfig
from sebulba.envs import make_environment
from sebulba.envs.base import Environment
from sebulba.evaluation.recording import Recording
from sebulba.evaluation.rendering import check_rendering
from sebulba.evaluation.video import check_format, write_video
from sebulba.storage.metrics.base import REQUIRED_KEYS, VIDEO, MetricsWriter, Row

_OWN_KEYS = ("env_steps", "updates", "wall_time_s")
_MAX_FRAMES = 1_000  # the supervisor encodes the video, and watches nothing meanwhile
_FPS = 25


class EvaluationWriter:
    """Writes each evaluation to `evaluations.jsonl`, and its numbers to every logger."""

    def __init__(
        self, file: MetricsWriter, log_row: Callable[[Row], None], on_row: Callable[[Row], None]
    ):
        """Write to an own file and to loggers.

        Args:
            file: of evaluations only.
            log_row: takes rows of metrics, and never waits.
            on_row: takes rows of evaluations.
        """
        self._file = file
        self._log_row = log_row
        self._on_row = on_row

    def write(self, row: Row) -> None:
        """Write and log an evaluation."""
        self._file.write(row)
        self._log_row(as_metrics(row))
        self._on_row(row)

    def close(self) -> None:
        """Close the file; may be called twice."""
        self._file.close()


def as_metrics(row: Row) -> Row:
    """Return a row of evaluation as a row of metrics: its numbers as `evaluation/NAME`.

    The keys that every row of metrics has are None, except counts and time.
    """
    numbers = {
        f"evaluation/{key}": value
        for key, value in row.items()
        if key not in _OWN_KEYS and (isinstance(value, float | int) or value is None)
    }
    video = {VIDEO: row["video"]} if "video" in row else {}
    own = {key: row[key] for key in _OWN_KEYS}
    return dict.fromkeys(REQUIRED_KEYS) | own | numbers | video


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationVideos:
    """Files of the first episode of each evaluation, in the run directory."""

    run_dir: pathlib.Path
    format: str  # gif or mp4

    def check(self, env: EnvConfig) -> None:
        """Render a frame, so that a video that is impossible ends the run before it begins.

        Args:
            env: of the evaluation, with rendering enabled.

        Raises:
            ConfigError: the environment cannot be rendered, or a package is missing.
        """
        check_format(f"video.{self.format}")
        check_rendering(env)
        environment = make_environment(env, num_envs=1, seed=0)
        with contextlib.closing(environment):
            self.wrap(environment).reset()

    def wrap(self, environment: Environment) -> Environment:
        """Return the environment that records."""
        return Recording(environment, episodes=1, max_frames=_MAX_FRAMES)

    def save(self, environment: Environment, env_steps: int) -> str:
        """Write the video of a recording, and return its name in the run directory.

        Raises:
            OSError: the file could not be written.
        """
        assert isinstance(environment, Recording)
        name = f"videos/{env_steps}.{self.format}"
        (self.run_dir / name).parent.mkdir(exist_ok=True)
        write_video(self.run_dir / name, environment.frames(), fps=_FPS)
        return name
