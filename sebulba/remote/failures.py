"""How a call of the process that acts ended: a record there, and an exception here again.

Importing this imports no jax, since the process imports it before it has set what jax reads.
"""

import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sebulba.errors import ConfigError, describe_error
from sebulba.processes.remote_process import ProcessLost

if TYPE_CHECKING:
    from sebulba.remote.wire import Record

# How a call ended.
DONE = "done"
NOT_SET_UP = "not set up"  # this process has replaced the one that was
ENVIRONMENT_FAULT = "environment fault"
STREAM_LOST = "stream lost"
CONFIG_ERROR = "config error"
FAILED = "failed"  # anything else


class RemoteError(RuntimeError):
    """A process that acts raised something that is no fault of its environments."""


def describe(error: BaseException) -> "Record":
    """Return the record of a call that raised."""
    from sebulba.envs.base import EnvironmentFault
    from sebulba.ring.collectors import StreamLost

    kinds = (
        (EnvironmentFault, ENVIRONMENT_FAULT),
        (StreamLost, STREAM_LOST),
        (ConfigError, CONFIG_ERROR),
    )
    end = next((end for kind, end in kinds if isinstance(error, kind)), FAILED)
    return {
        "end": end,
        "kind": type(error).__name__,
        "text": describe_error(error) if end == FAILED else str(error),
        "env_steps": getattr(error, "env_steps", 0),
        "notes": list(getattr(error, "__notes__", ())),
        "traceback": "".join(traceback.format_exception(error)),
    }


def raise_of(record: "Record", where: str) -> None:
    """Raise what a call raised in its process; return if it ended well.

    Args:
        record: what the call has returned.
        where: the actor, its machine and its process.
    """
    from sebulba.envs.base import EnvironmentDataError, EnvironmentFault, EnvironmentTimeout
    from sebulba.ring.collectors import StreamLost

    end = record["end"]
    if end == DONE:
        return
    if end == NOT_SET_UP:
        raise ProcessLost("it was replaced")
    text = record["text"]
    error: Exception
    if end == ENVIRONMENT_FAULT:
        faults = {each.__name__: each for each in (EnvironmentDataError, EnvironmentTimeout)}
        error = faults.get(record["kind"], EnvironmentFault)(text)
        error.env_steps = record["env_steps"]
    elif end == STREAM_LOST:
        error = StreamLost(text)
    elif end == CONFIG_ERROR:
        error = ConfigError(f"{where}: {text}")
    else:
        error = RemoteError(f"{where}: {text}")
    notes: Sequence[str] = record["notes"]
    for note in notes:
        error.add_note(note)
    if end in (ENVIRONMENT_FAULT, FAILED):
        error.add_note(f"On {where}:\n{record['traceback'].rstrip()}")
    raise error
