"""`metrics.jsonl`: one JSON object per line."""

import json
import os
import pathlib

from sebulba.storage.metrics.base import Row
from sebulba.storage.metrics.files import LineFile, cut_torn_line, to_json, write_text


class JsonlWriter:
    """Appends one JSON object per row; non-finite numbers become null, see `to_json`."""

    def __init__(self, path: str | os.PathLike[str], *, resume_env_steps: int | None = None):
        """Open `path`, to append to the rows that it holds.

        Args:
            path: of the file.
            resume_env_steps: env steps of the checkpoint that the run resumes from; later rows are
                removed, because the run writes them again. None: all rows stay.
        """
        if resume_env_steps is not None and os.path.exists(path):
            _remove_rows_after(pathlib.Path(path), resume_env_steps)
        self._file = LineFile(path)

    def write(self, row: Row) -> None:
        """Append a row."""
        self._file.append(to_json(row) + "\n")

    def close(self) -> None:
        """Close the file; may be called twice."""
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
