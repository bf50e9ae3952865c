"""Keeps Orbax from burying the one message that matters when a disk is full or a file damaged."""

import functools
import logging
import pathlib
import sys
from typing import Any


@functools.cache
def silence_orbax() -> None:
    """Drops, for the rest of the process, what Orbax reports beside raising it.

    A failed write or read is logged by every layer with its whole traceback, and every array that
    was on its way beside the failed one reports a failure of its own, or later on that the "Event
    loop is closed".
    """
    logging.getLogger("absl").addFilter(_is_not_from_orbax)
    logging.getLogger("asyncio").addFilter(_is_not_of_tensorstore)
    report = sys.unraisablehook

    def report_others(unraisable: Any) -> None:
        if str(unraisable.exc_value) != "Event loop is closed":
            report(unraisable)

    sys.unraisablehook = report_others


def _is_not_from_orbax(record: logging.LogRecord) -> bool:
    return "orbax" not in pathlib.PurePath(record.pathname).parts


def _is_not_of_tensorstore(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    return "tensorstore" not in str(error)
