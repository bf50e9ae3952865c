"""Files that are whole at any moment, whatever kills the process or fills the disk."""

import errno
import json
import math
import os
import pathlib
from typing import Any


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Replaces a file by `text` in one step: a reader sees the old text or the new, never a part.

    Raises:
        OSError: it could not be written; the old file is intact.
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
    """Replaces a file by `value` as indented JSON, in one step; see `to_json`."""
    write_text(path, to_json(value, indent=2) + "\n")


def to_json(value: Any, *, indent: int | None = None) -> str:
    """Returns JSON that strict parsers take as well, on one line unless `indent` is given.

    JSON has no numbers that are not finite: they become null, which pandas and jq read as a
    missing number. That an update was not finite is counted in `non_finite_updates`.
    """
    return json.dumps(_finite(value), indent=indent, allow_nan=False)


class LineFile:
    """A text file that grows by whole lines; each is with the operating system once appended."""

    def __init__(self, path: str | os.PathLike[str]):
        """Opens `path`, creating it or going on after its last whole line."""
        cut_torn_line(path)
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115 - closed by `close`
        self._size = os.path.getsize(path)

    def append(self, line: str) -> None:
        """Appends a line, which brings its own line end.

        Raises:
            OSError: the disk is full, say; no part of the line stays in the file.
        """
        data = line.encode()
        try:
            if self._file.write(data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._file.name)
        except OSError:
            os.truncate(self._file.fileno(), self._size)
            raise
        self._size += len(data)

    def close(self) -> None:
        """Closes the file; may be called twice."""
        self._file.close()


def cut_torn_line(path: str | os.PathLike[str]) -> None:
    """Cuts off what follows the last line end of a file, if there is such a file.

    A machine that went down while a line was being written leaves a part of it.
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
