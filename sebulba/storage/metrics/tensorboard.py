"""TensorBoard event files, with env steps as the x-axis."""

import json
import os
import pathlib
import socket
import struct
import time
from collections.abc import Mapping
from typing import Any

from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary
from tensorboardX.record_writer import masked_crc32c

from sebulba.storage.metrics.base import VIDEO, Row
from sebulba.storage.metrics.files import AppendFile
from sebulba.storage.metrics.tags import tag_of

_TABLE_METRICS = ("episode_return_mean", "evaluation/return_mean")


class TensorBoardWriter:
    """Writes every number of a row as a scalar, named by `tag_of`; None and strings are left out.

    Uses tensorboardX's events without its `SummaryWriter`, whose background thread dies on a full
    disk and then blocks every write. Here the caller gets the error, the file keeps no part of the
    event, and later events go to the same file.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        resume_env_steps: int | None = None,
        hyper_parameters: Mapping[str, Any] | None = None,
    ):
        """Prepare a new event file.

        Args:
            directory: created if missing; existing event files stay.
            resume_env_steps: env steps of the checkpoint that the run resumes from; TensorBoard
                hides later rows of earlier files. None: it shows all rows.
            hyper_parameters: the columns of TensorBoard's table of runs, in their order; None: the
                run is not in it.
        """
        self._directory = pathlib.Path(directory)
        self._directory.mkdir(parents=True, exist_ok=True)
        self._file: AppendFile | None = None
        self._has_version = False
        if resume_env_steps is not None:
            start = SessionLog(status=SessionLog.START)
            self._write(Event(step=resume_env_steps + 1, session_log=start))
        elif hyper_parameters is not None:
            for summary in _table_row(hyper_parameters):
                self._write(Event(step=0, summary=summary))

    def write(self, row: Row) -> None:
        """Write a row as one event at `row["env_steps"]`."""
        values = [
            Summary.Value(tag=tag_of(key), simple_value=value)
            for key, value in row.items()
            if isinstance(value, float | int) and key != "env_steps"
        ]
        name = row.get(VIDEO)
        if name is not None and name.endswith(".gif"):  # what TensorBoard shows as an animation
            data = (self._directory / name).read_bytes()
            # A GIF begins with "GIF89a", then width and height.
            width, height = struct.unpack("<HH", data[6:10])
            image = Summary.Image(
                width=width, height=height, colorspace=3, encoded_image_string=data
            )
            values.append(Summary.Value(tag=tag_of(VIDEO), image=image))
        self._write(Event(step=row["env_steps"], summary=Summary(value=values)))

    def close(self) -> None:
        """Close the event file; may be called twice."""
        if self._file is not None:
            file, self._file = self._file, None
            file.close()

    def _write(self, event: Event) -> None:
        if self._file is None:
            name = f"events.out.tfevents.{time.time_ns()}.{socket.gethostname()}"
            self._file = AppendFile(self._directory / name)
            self._has_version = False
        if not self._has_version:
            self._file.append_bytes(_record(Event(file_version="brain.Event:2")))
            self._has_version = True
        self._file.append_bytes(_record(event))


def _table_row(hyper_parameters: Mapping[str, Any]) -> tuple[Summary, ...]:
    """Return what puts a run into the table of TensorBoard's plugin HParams."""
    from tensorboardX.summary import hparams

    simple = {
        key: value
        if isinstance(value, bool | int | float | str)
        else json.dumps(value, default=str)
        for key, value in hyper_parameters.items()
        if value is not None
    }
    return hparams(simple, dict.fromkeys(map(tag_of, _TABLE_METRICS)))


def _record(event: Event) -> bytes:
    """Return an event as TensorBoard reads it: length, checksum, event, checksum."""
    event.wall_time = time.time()
    data = event.SerializeToString()
    length = struct.pack("<Q", len(data))
    checksums = (struct.pack("<I", masked_crc32c(part)) for part in (length, data))
    return b"".join((length, next(checksums), data, next(checksums)))
