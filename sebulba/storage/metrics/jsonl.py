"""`metrics.jsonl`: one JSON object per line."""

import json
import os
from collections.abc import Callable

from sebulba.storage.metrics.base import Row
from sebulba.storage.metrics.files import (
    LineFile,
    describe_damage,
    read_lines,
    to_json,
    write_text,
)


class JsonlWriter:
    """Appends one JSON object per row; non-finite numbers become null, see `to_json`."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        resume_env_steps: int | None = None,
        on_warning: Callable[[str], None] = lambda text: None,
    ):
        """Open `path`, to append to the rows that it holds.

        Args:
            path: of the file.
            resume_env_steps: env steps of the checkpoint that the run resumes from; later rows are
                removed, because the run writes them again. None: all rows stay.
            on_warning: takes one line of text about lines that a crash has damaged; they are
                removed too.
        """
        if resume_env_steps is not None:
            remove_rows_after(path, resume_env_steps, on_warning=on_warning)
        self._file = LineFile(path)

    def write(self, row: Row) -> None:
        """Append a row."""
        self._file.append(to_json(row) + "\n")

    def close(self) -> None:
        """Close the file; may be called twice."""
        self._file.close()


def remove_rows_after(
    path: str | os.PathLike[str], env_steps: int, *, on_warning: Callable[[str], None]
) -> None:
    """Remove later rows and damaged lines from a file, if the file exists.

    Args:
        path: of the file.
        env_steps: of the last row that stays.
        on_warning: takes one line of text about damaged lines.
    """
    if not os.path.exists(path):
        return
    lines, num_damaged = read_lines(path)
    kept = []
    for line in lines:
        try:
            is_kept = json.loads(line)["env_steps"] <= env_steps
        except (ValueError, KeyError, TypeError, RecursionError):
            num_damaged += 1
        else:
            kept += [line] if is_kept else []
    if num_damaged or len(kept) < len(lines):
        write_text(path, "".join(kept))
    if num_damaged:
        on_warning(describe_damage(path, num_damaged))
