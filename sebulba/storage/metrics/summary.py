"""`summary.json`: how a run ended."""

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
"""What every summary has; more may follow."""


def write_summary(path: str | os.PathLike[str], summary: dict[str, Any]) -> None:
    """Writes the summary of a run in one step: an earlier one stays until the new one is whole.

    Raises:
        ValueError: a key of `SUMMARY_KEYS` is missing.
        OSError: it could not be written.
    """
    missing = [key for key in SUMMARY_KEYS if key not in summary]
    if missing:
        raise ValueError(f"{path}: expected a summary with the keys {', '.join(missing)} too")
    write_json(path, summary)
