"""TensorBoard event files, with env steps as the x-axis."""

import contextlib
import os
import pathlib
import socket
import time

from tensorboardX import RecordWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary

from sebulba.storage.metrics.base import Row


class TensorBoardWriter:
    """Writes every number of a row as a scalar of the same name; None and strings are left out.

    Uses tensorboardX's event file without its `SummaryWriter`, whose background thread dies on a
    full disk and then blocks every write. Here the caller gets the error.
    """

    def __init__(self, directory: str | os.PathLike[str], *, resume_env_steps: int | None = None):
        """Prepare a new event file.

        Args:
            directory: created if missing; existing event files stay.
            resume_env_steps: env steps of the checkpoint that the run resumes from; TensorBoard
                hides later rows of earlier files. None: it shows all rows.
        """
        self._directory = pathlib.Path(directory)
        self._directory.mkdir(parents=True, exist_ok=True)
        self._file: RecordWriter | None = None
        if resume_env_steps is not None:
            start = SessionLog(status=SessionLog.START)
            self._write(Event(step=resume_env_steps + 1, session_log=start))

    def write(self, row: Row) -> None:
        """Write a row as one event at `row["env_steps"]`."""
        values = [
            Summary.Value(tag=key, simple_value=value)
            for key, value in row.items()
            if isinstance(value, float | int) and key != "env_steps"
        ]
        self._write(Event(step=row["env_steps"], summary=Summary(value=values)))

    def close(self) -> None:
        """Close the event file; may be called twice."""
        if self._file is not None:
            file, self._file = self._file, None
            file.close()

    def _write(self, event: Event) -> None:
        try:
            file = self._file
            if file is None:
                name = f"events.out.tfevents.{time.time_ns()}.{socket.gethostname()}"
                file = self._file = RecordWriter(str(self._directory / name))
                _append(file, Event(file_version="brain.Event:2"))
            _append(file, event)
            file.flush()
        except OSError:
            # TensorBoard stops reading a file at a torn record, so the next row opens a new file.
            with contextlib.suppress(OSError):
                self.close()
            raise


def _append(file: RecordWriter, event: Event) -> None:
    event.wall_time = time.time()
    file.write(event.SerializeToString())
