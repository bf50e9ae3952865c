"""`summary.json`: the results of a run and how it ended."""

import os
from typing import Any

from sebulba.storage.metrics.files import write_json

SUMMARY_KEYS = (
    "status",
    "env_steps",
    "updates",
    "wall_time_s",
    "steps_per_second",
    "best_episode_return_mean",
    "final_episode_return_mean",
    "ledger",
    "resume_command",
)
"""The keys of every summary; more may follow."""


def write_summary(path: str | os.PathLike[str], summary: dict[str, Any]) -> None:
    """Write the summary of a run, replacing an earlier one in one step.

    Raises:
        ValueError: a key of `SUMMARY_KEYS` is missing.
        OSError: the file could not be written; the earlier one is intact.
    """
    missing = [key for key in SUMMARY_KEYS if key not in summary]
    if missing:
        raise ValueError(f"{path}: expected a summary with the keys {', '.join(missing)} too")
    write_json(path, summary)
