"""`schedule.jsonl`: in which order a run went, and how a later one repeats it.

The first line says what the order depends on; every other one is a learner cycle. A run that is
resumed goes on in the same file after the cycles that its checkpoint knows of.
"""

import json
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

from sebulba.errors import ConfigError
from sebulba.ring.schedule import RecordedSchedule, Taken
from sebulba.storage.metrics.files import LineFile, cut_torn_line, write_text
from sebulba.types import TrajectoryItem

SCHEDULE = "schedule.jsonl"


class ScheduleRecorder:
    """Writes what each learner cycle took; used by the learner's thread.

    A line that cannot be written is told and ends the record, never the run.
    """

    def __init__(
        self,
        path: pathlib.Path,
        *,
        num_actors: int,
        trajectories_per_cycle: int,
        on_warning: Callable[[str], None],
    ):
        """Begins a record, or goes on with the one that `resume_schedule` has prepared."""
        self._on_warning = on_warning
        self._file: LineFile | None = LineFile(path)
        if path.stat().st_size == 0:
            self._append(_header(num_actors, trajectories_per_cycle))

    def after_cycle(self, items: Sequence[TrajectoryItem]) -> None:
        """Takes a learner cycle in."""
        self._append([[item.actor_id, item.sequence_number, item.policy_version] for item in items])

    def close(self) -> None:
        """Closes the file; may be called twice."""
        if self._file is not None:
            self._file.close()

    def _append(self, line: Any) -> None:
        if self._file is None:
            return
        try:
            self._file.append(json.dumps(line) + "\n")
        except OSError as error:
            self._file.close()
            self._file = None
            self._on_warning(f"schedule: {error}; training goes on, and its record ends here")


def resume_schedule(path: pathlib.Path, *, num_cycles: int, is_exact: bool) -> None:
    """Prepares a record for a run that goes on after `num_cycles` learner cycles.

    Raises:
        ConfigError: the record has no line for some of them.
    """
    if not is_exact:
        raise ConfigError(
            "run.record_schedule: expected a run that resumes with its environments as they were,"
            " got one whose environments start anew, which no schedule repeats; resume is possible"
            " with a run that records none"
        )
    try:
        cut_torn_line(path)
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    except OSError as error:
        raise ConfigError(f"run.record_schedule: expected the record so far: {error}") from error
    if len(lines) <= num_cycles:
        raise ConfigError(
            f"run.record_schedule: expected {num_cycles} learner cycles in {path}, got"
            f" {max(len(lines) - 1, 0)}"
        )
    write_text(path, "".join(lines[: num_cycles + 1]))


def read_schedule(path: str, *, num_actors: int, trajectories_per_cycle: int) -> RecordedSchedule:
    """Reads a record to be repeated.

    Raises:
        ConfigError: it is none, or of a run with another number of actors or of trajectories.
    """
    try:
        lines = pathlib.Path(path).read_text(encoding="utf-8").splitlines()
        header, *cycles = map(json.loads, lines)
        taken = [[Taken(**dict(zip(_FIELDS, x, strict=True))) for x in cycle] for cycle in cycles]
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(
            f"run.replay_schedule: expected a schedule.jsonl of an earlier run, got {path}: {error}"
        ) from error
    expected = _header(num_actors, trajectories_per_cycle)
    if header != expected:
        raise ConfigError(
            f"run.replay_schedule: expected a record of a run with {expected}, got {header} in"
            f" {path}"
        )
    return RecordedSchedule(taken)


_FIELDS = ("actor_id", "sequence_number", "policy_version")


def _header(num_actors: int, trajectories_per_cycle: int) -> dict[str, int]:
    return {"num_actors": num_actors, "trajectories_per_cycle": trajectories_per_cycle}
