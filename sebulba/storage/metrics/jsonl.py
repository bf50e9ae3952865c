"""`metrics.jsonl`: one JSON object a line."""

import json
import os
import pathlib

from sebulba.storage.metrics.base import Row
from sebulba.storage.metrics.files import LineFile, cut_torn_line, to_json, write_text


class JsonlWriter:
    """Appends one JSON object a row; numbers that are not finite are null, see `to_json`."""

    def __init__(self, path: str | os.PathLike[str], *, resume_env_steps: int | None = None):
        """Opens `path`, going on after the rows that are there.

        Args:
            path: of the file.
            resume_env_steps: env steps at the checkpoint that the run resumes from; later rows,
                which the run is about to write again, are removed. None keeps all.
        """
        if resume_env_steps is not None and os.path.exists(path):
            _remove_rows_after(pathlib.Path(path), resume_env_steps)
        self._file = LineFile(path)

    def write(self, row: Row) -> None:
        """Appends a row."""
        self._file.append(to_json(row) + "\n")

    def close(self) -> None:
        """Closes the file; may be called twice."""
        self._file.close()


def _remove_rows_after(path: pathlib.Path, env_steps: int) -> None:
    cut_torn_line(path)
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    kept = [line for line in lines if _is_row_until(line, env_steps)]
    if len(kept) < len(lines):
        write_text(path, "".join(kept))


def _is_row_until(line: str, env_steps: int) -> bool:
    try:
        return json.loads(line)["env_steps"] <= env_steps
    except (ValueError, KeyError, TypeError):
        return False
