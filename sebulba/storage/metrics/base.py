"""The types of a row of metrics and of its writers."""

from typing import Any, Protocol

Row = dict[str, Any]
"""One line of `metrics.jsonl`: floats, ints, strings, and None for what is not measured yet."""

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
"""The keys of every row; the agent's metrics and the time shares follow."""


VIDEO = "evaluation/video"
"""The key of a video's file, relative to the run directory."""


class MetricsWriter(Protocol):
    """Writes rows to one place; used by one thread at a time."""

    def write(self, row: Row) -> None:
        """Write a row so that it survives a kill of the process right after.

        If this fails, the rows written before stay intact.
        """
        ...

    def close(self) -> None:
        """Release files and connections; may be called twice."""
        ...
