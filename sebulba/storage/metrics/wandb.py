"""Weights & Biases, enabled by `run.wandb_project`."""

import importlib.util
import os
import pathlib
import secrets
from typing import Any

from sebulba.errors import ConfigError
from sebulba.storage.metrics.base import VIDEO, Row
from sebulba.storage.metrics.tags import tag_of

_X = "env_steps"
"""The x-axis of all numbers."""


class WandbWriter:
    """Logs every number of a row at its env steps, named by `tag_of`; leaves out None and strings.

    Connects at the first row, in the writer's own thread, so a login, a proxy or a slow network
    delays nothing else. `WANDB_MODE=offline` keeps everything in the directory. A resumed run
    continues the same curves, and W&B ignores rows up to the step that it already has.
    """

    def __init__(
        self, directory: str | os.PathLike[str], *, project: str, name: str, config: dict[str, Any]
    ):
        """Prepare a run of the project, without sending anything.

        Args:
            directory: of the run; W&B's files go to `wandb/` there.
            project: `run.wandb_project`.
            name: of the run; others of the project may have the same.
            config: shown with the run.

        Raises:
            ConfigError: wandb is not installed.
        """
        if importlib.util.find_spec("wandb") is None:
            raise ConfigError(
                "run.wandb_project: expected the package wandb, which is not installed:"
                " pip install 'sebulba[wandb]'"
            )
        self._directory = pathlib.Path(directory)
        self._project, self._name, self._config = project, name, config
        self._run: Any = None
        self._last_step = 0

    def write(self, row: Row) -> None:
        """Log a row."""
        if self._run is None:
            self._run = self._start()
        numbers = {
            key if key == _X else tag_of(key): value
            for key, value in row.items()
            if isinstance(value, float | int)
        }
        if VIDEO in row:
            numbers[tag_of(VIDEO)] = self._video(row[VIDEO])
        # W&B drops a row at an earlier step and merges rows of one step, so an evaluation that took
        # its time gets a step of its own. The x-axis is `env_steps`, wherever the row is.
        self._last_step = max(self._last_step + 1, row[_X])
        self._run.log(numbers, step=self._last_step)

    def close(self) -> None:
        """End the run; may be called twice."""
        if self._run is not None:
            run, self._run = self._run, None
            run.finish()

    def _start(self) -> Any:
        import wandb

        run = wandb.init(
            project=self._project,
            name=self._name,
            id=self._id(),
            resume="allow",
            config=self._config,
            dir=self._directory,
            settings=wandb.Settings(silent=True, console="off"),
        )
        run.define_metric(_X, hidden=True)
        run.define_metric("*", step_metric=_X)
        return run

    def _id(self) -> str:
        """Return the run's id in the project, which its directory keeps for a resume."""
        directory = self._directory / "wandb"
        file = directory / "run-id.txt"
        if not file.exists():
            # Earlier versions kept none: the id was the name.
            is_new = not directory.exists()
            directory.mkdir(exist_ok=True)
            file.write_text(secrets.token_hex(8) if is_new else self._name, encoding="utf-8")
        return file.read_text(encoding="utf-8")

    def _video(self, name: str) -> Any:
        import wandb

        return wandb.Video(str(self._directory / name), format=name.rpartition(".")[2])
