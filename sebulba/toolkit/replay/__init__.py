"""Replay on the learner devices: all that an agent with a replay imports. Start at `buffer.py`.

- Settings: `ReplayConfig`, a base of the agent's `Config`.
- Single or n-step transitions: `TransitionReplay(config, run_spec)` with `init`, `add`, `sample`,
  `update_priorities` and `ratio`, the number of updates of a cycle.
- Sequences for recurrent agents: `replay_spec` and `replay_ratio`, and the functions `init`, `add`,
  `newest`, `read`, `sample` and `update_priorities` over a `ReplayState`.
- Frame stacks stored as single frames: `frame_stack`.
- Rows of any content: `Row`, `row_shapes`, `rows_of`, `as_seen` and `valid_transitions`.
"""

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
    sample,
    update_priorities,
)
from sebulba.toolkit.replay.priorities import (
    MIN_PRIORITY,
    importance_weights,
    over_maximum,
    uniform_weights,
)
from sebulba.toolkit.replay.ratio import ReplayRatio
from sebulba.toolkit.replay.rows import Row, as_seen, row_shapes, rows_of, valid_transitions
from sebulba.toolkit.replay.setup import frame_stack, replay_ratio, replay_spec
from sebulba.toolkit.replay.transitions import TransitionReplay, Transitions
from sebulba.toolkit.settings import ReplayConfig

__all__ = [
    "MIN_PRIORITY",
    "ReplayConfig",
    "ReplayRatio",
    "ReplaySpec",
    "ReplayState",
    "Row",
    "Sample",
    "SequenceIds",
    "Sequences",
    "TransitionReplay",
    "Transitions",
    "add",
    "as_seen",
    "frame_stack",
    "importance_weights",
    "init",
    "is_stored",
    "newest",
    "over_maximum",
    "read",
    "replay_ratio",
    "replay_spec",
    "row_shapes",
    "rows_of",
    "sample",
    "uniform_weights",
    "update_priorities",
    "valid_transitions",
]
