"""`schedule.jsonl`: the recorded schedule of a run, which a later run can replay.

The first line holds the sizes that a schedule depends on; every other line is a learner cycle. A
resumed run continues the file after the last learner cycle of its checkpoint.
"""

import json
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

from sebulba.errors import ConfigError
from sebulba.ring.schedule import RecordedSchedule, Taken
from sebulba.storage.metrics.files import LineFile, write_text
from sebulba.types import TrajectoryItem

SCHEDULE = "schedule.jsonl"


class ScheduleRecorder:
    """Records the trajectories of each learner cycle, in the learner's thread.

    A failed write ends the record with a warning; training continues.
    """

    def __init__(
        self,
        path: pathlib.Path,
        *,
        num_actors: int,
        trajectories_per_cycle: int,
        on_warning: Callable[[str], None],
    ):
        """Start a record, or continue the one that `resume_schedule` has prepared."""
        self._on_warning = on_warning
        self._file: LineFile | None = LineFile(path)
        if path.stat().st_size == 0:
            self._append(_header(num_actors, trajectories_per_cycle))

    def after_cycle(self, items: Sequence[TrajectoryItem]) -> None:
        """Record the trajectories of a learner cycle."""
        self._append([[item.actor_id, item.sequence_number, item.policy_version] for item in items])

    def close(self) -> None:
        """Close the file. Idempotent."""
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
            self._on_warning(f"schedule: {error}. Training continues without recording")


def resume_schedule(path: pathlib.Path, *, num_cycles: int, is_exact: bool) -> None:
    """Cut the record off after the `num_cycles` learner cycles of a checkpoint.

    Raises:
        ConfigError: the record has fewer cycles, or the resume is not exact.
    """
    if not is_exact:
        raise ConfigError(
            "run.record_schedule: expected an exact resume, got environments that are recreated,"
            " which no schedule replays. Set run.record_schedule false to resume"
        )
    try:
        lines = path.read_bytes().splitlines(keepends=True)
        kept = b"".join(lines[: num_cycles + 1]).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"run.record_schedule: cannot read the record: {error}") from error
    if kept.count("\n") <= num_cycles:
        raise ConfigError(
            f"run.record_schedule: expected {num_cycles} learner cycles in {path}, got"
            f" {max(len(lines) - 1, 0)}"
        )
    write_text(path, kept)


def read_schedule(path: str, *, num_actors: int, trajectories_per_cycle: int) -> RecordedSchedule:
    """Read a record for a replay.

    Raises:
        ConfigError: the file is not a record, or the sizes of its run differ.
    """
    try:
        lines = pathlib.Path(path).read_text(encoding="utf-8").splitlines()
        header, *cycles = map(json.loads, lines)
        taken = [[Taken(**dict(zip(_FIELDS, x, strict=True))) for x in cycle] for cycle in cycles]
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(
            f"run.replay_schedule: expected a schedule.jsonl, got {path}: {error}"
        ) from error
    expected = _header(num_actors, trajectories_per_cycle)
    if header != expected:
        raise ConfigError(
            f"run.replay_schedule: expected a run with {expected}, got {header} in {path}"
        )
    return RecordedSchedule(taken)


_FIELDS = ("actor_id", "sequence_number", "policy_version")


def _header(num_actors: int, trajectories_per_cycle: int) -> dict[str, int]:
    return {"num_actors": num_actors, "trajectories_per_cycle": trajectories_per_cycle}
