"""What a row of metrics is, and what writes one."""

from typing import Any, Protocol

Row = dict[str, Any]
"""One line of `metrics.jsonl`: a float, int, str, or None where nothing has been measured yet."""

REQUIRED_KEYS = (
    "env_steps",
    "updates",
    "wall_time_s",
    "steps_per_second",
    "episode_return_mean",
    "episode_length_mean",
    "episodes",
    "policy_lag_mean",
    "queue_depth",
)
"""What every row has; the agent's metrics and the time shares follow."""


class MetricsWriter(Protocol):
    """Writes rows to one place; used by one thread at a time."""

    def write(self, row: Row) -> None:
        """Writes a row so that it is not lost if the process is killed right after.

        A row that cannot be written leaves what was written before intact.
        """
        ...

    def close(self) -> None:
        """Releases what the writer holds; may be called twice."""
        ...
