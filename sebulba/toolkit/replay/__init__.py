"""Prioritised replay of sequences on the learner devices. Start reading at `buffer.py`."""

from sebulba.toolkit.replay.buffer import (
    ReplaySpec,
    ReplayState,
    Sample,
    SequenceIds,
    Sequences,
    add,
    init,
    is_stored,
    newest,
    read,
    replay_bytes,
    sample,
    update_priorities,
)

__all__ = [
    "ReplaySpec",
    "ReplayState",
    "Sample",
    "SequenceIds",
    "Sequences",
    "add",
    "init",
    "is_stored",
    "newest",
    "read",
    "replay_bytes",
    "sample",
    "update_priorities",
]
