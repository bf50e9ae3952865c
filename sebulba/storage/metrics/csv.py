"""`metrics.csv`: the rows of metrics as a table."""

import csv
import io
import os
import pathlib
from collections.abc import Callable, Iterable
from typing import Any

from sebulba.storage.metrics.base import Row
from sebulba.storage.metrics.files import LineFile, describe_damage, read_lines, write_text


class CsvWriter:
    """Appends one line per row under a header; None and missing keys are blank.

    A key that first appears in a later row gets a new last column: the file is rewritten, with
    blanks in the earlier rows.
    """

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
                removed too, and with a damaged header the table.
        """
        self._path = pathlib.Path(path)
        self._columns, rows, num_damaged = _read(self._path)
        kept = rows
        if resume_env_steps is not None:
            kept = [row for row in rows if float(row["env_steps"]) <= resume_env_steps]
        if num_damaged:
            on_warning(describe_damage(path, num_damaged))
        if num_damaged or len(kept) < len(rows):
            write_text(self._path, _table(self._columns, kept) if self._columns else "")
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
        _, rows, _ = _read(self._path)
        columns = [*self._columns, *late]
        write_text(self._path, _table(columns, rows))
        self._columns = columns
        self._file.close()
        self._file = LineFile(self._path)


def _read(path: pathlib.Path) -> tuple[list[str], list[dict[str, str]], int]:
    """Return the columns, the rows and the number of damaged lines."""
    if not path.exists():
        return [], [], 0
    lines, num_damaged = read_lines(path)
    columns: list[str] = []
    rows = []
    for line in lines:
        try:
            # Line by line: no value holds a newline, and a damaged line may hold a quote.
            (values,) = csv.reader([line], strict=True)
            if not columns and "env_steps" in values:
                columns = values
                continue
            row = dict(zip(columns, values, strict=True))
            float(row["env_steps"])
        except (csv.Error, ValueError, KeyError):
            num_damaged += 1
        else:
            rows.append(row)
    return columns, rows, num_damaged


def _table(columns: list[str], rows: Iterable[dict[str, str]]) -> str:
    return _lines(columns, *([row.get(column) for column in columns] for row in rows))


def _lines(*records: Iterable[Any]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(records)
    return text.getvalue()
