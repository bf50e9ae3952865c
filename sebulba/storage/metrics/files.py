"""Files that stay intact when the process is killed or the disk is full."""

import errno
import json
import math
import os
import pathlib
from typing import Any


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Replace a file by `text` in one step: a reader sees the old text or the new text.

    Raises:
        OSError: the file could not be written; the old file is intact.
    """
    path = pathlib.Path(path)
    partial = path.with_name(f"{path.name}.tmp")
    try:
        with open(partial, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Replace a file by `value` as indented JSON, in one step; see `to_json`."""
    write_text(path, to_json(value, indent=2) + "\n")


def to_json(value: Any, *, indent: int | None = None) -> str:
    """Return strict JSON, on one line unless `indent` is given.

    JSON has no NaN or infinity: they become null, which pandas and jq read as a missing number.
    `non_finite_updates` still counts non-finite updates.
    """
    return json.dumps(_finite(value), indent=indent, allow_nan=False)


class AppendFile:
    """A file that grows by complete records, each handed to the operating system at once."""

    def __init__(self, path: str | os.PathLike[str]):
        """Open `path`, creating it if it does not exist."""
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115 - closed by `close`
        self._size = os.path.getsize(path)

    def append_bytes(self, data: bytes) -> None:
        """Append a record.

        Raises:
            OSError: for example, the disk is full; no part of the record stays in the file.
        """
        try:
            if self._file.write(data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._file.name)
        except OSError:
            os.truncate(self._file.fileno(), self._size)
            raise
        self._size += len(data)

    def close(self) -> None:
        """Close the file; may be called twice."""
        self._file.close()


class LineFile(AppendFile):
    """A text file that grows by complete lines."""

    def __init__(self, path: str | os.PathLike[str]):
        """Open `path`, creating it or removing an incomplete last line."""
        cut_torn_line(path)
        super().__init__(path)

    def append(self, line: str) -> None:
        """Append a line, which must end with a newline.

        Raises:
            OSError: for example, the disk is full; no part of the line stays in the file.
        """
        self.append_bytes(line.encode())


def read_lines(path: str | os.PathLike[str]) -> tuple[list[str], int]:
    """Return the complete lines of a text file, each with its newline, and the number of others.

    A machine that goes down during a write leaves a line without its end, or bytes that are no
    text.
    """
    *complete, rest = pathlib.Path(path).read_bytes().split(b"\n")
    lines, num_damaged = [], int(bool(rest))
    for line in complete:
        try:
            lines.append(line.decode() + "\n")
        except UnicodeDecodeError:
            num_damaged += 1
    return lines, num_damaged


def describe_damage(path: str | os.PathLike[str], num_damaged: int) -> str:
    """Return the warning about lines that were dropped from a file."""
    lines = "1 damaged line" if num_damaged == 1 else f"{num_damaged} damaged lines"
    return f"{pathlib.Path(path).name}: dropped {lines}, which a crash has left"


def cut_torn_line(path: str | os.PathLike[str]) -> None:
    """Remove an incomplete last line from a file, if the file exists.

    A machine that goes down during a write leaves one.
    """
    path = pathlib.Path(path)
    if not path.exists():
        return
    content = path.read_bytes()
    if not content.endswith(b"\n"):
        os.truncate(path, content.rfind(b"\n") + 1)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
