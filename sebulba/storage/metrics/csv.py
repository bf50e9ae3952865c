"""`metrics.csv`: the rows of metrics as a table."""

import csv
import io
import os
import pathlib
from collections.abc import Iterable
from typing import Any

from sebulba.storage.metrics.base import Row
from sebulba.storage.metrics.files import LineFile, cut_torn_line, write_text


class CsvWriter:
    """Appends one line per row under a header; None and missing keys are blank.

    A key that first appears in a later row gets a new last column: the file is rewritten, with
    blanks in the earlier rows.
    """

    def __init__(self, path: str | os.PathLike[str], *, resume_env_steps: int | None = None):
        """Open `path`, to append to the rows that it holds.

        Args:
            path: of the file.
            resume_env_steps: env steps of the checkpoint that the run resumes from; later rows are
                removed, because the run writes them again. None: all rows stay.
        """
        self._path = pathlib.Path(path)
        cut_torn_line(self._path)
        self._columns, rows = _read(self._path)
        if resume_env_steps is not None:
            kept = [row for row in rows if _is_row_until(row, resume_env_steps)]
            if len(kept) < len(rows):
                write_text(self._path, _table(self._columns, kept))
        self._file = LineFile(self._path)

    def write(self, row: Row) -> None:
        """Append a row, after rewriting the file if the row has a new key."""
        late = [key for key in row if key not in self._columns]
        if late:
            self._add_columns(late)
        self._file.append(_lines([row.get(column) for column in self._columns]))

    def close(self) -> None:
        """Close the file; may be called twice."""
        self._file.close()

    def _add_columns(self, late: list[str]) -> None:
        _, rows = _read(self._path)
        columns = [*self._columns, *late]
        write_text(self._path, _table(columns, rows))
        self._columns = columns
        self._file.close()
        self._file = LineFile(self._path)


def _read(path: pathlib.Path) -> tuple[list[str], list[dict[str, str]]]:
    if not path.exists():
        return [], []
    with open(path, encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        rows = list(reader)
        return list(reader.fieldnames or ()), rows


def _table(columns: list[str], rows: Iterable[dict[str, str]]) -> str:
    return _lines(columns, *([row.get(column) for column in columns] for row in rows))


def _lines(*records: Iterable[Any]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(records)
    return text.getvalue()


def _is_row_until(row: dict[str, str], env_steps: int) -> bool:
    try:
        return float(row["env_steps"]) <= env_steps
    except (ValueError, KeyError, TypeError):
        return False
