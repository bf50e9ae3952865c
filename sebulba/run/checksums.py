"""Writes the checksums of a run, with which another run is compared to it."""

import pathlib
from collections.abc import Callable, Sequence
from typing import Any

from sebulba.errors import describe_error
from sebulba.process import start_daemon
from sebulba.ring.records import CycleReport, Unroll
from sebulba.ring.ring import Observer, Ring
from sebulba.ring.run_end import RunEnd
from sebulba.storage.checksums import NETWORKS, OPTIMIZER, TRAJECTORIES, next_row
from sebulba.storage.metrics.base import Row
from sebulba.storage.metrics.jsonl import JsonlWriter
from sebulba.storage.metrics.writers import WriterQueue
from sebulba.storage.sketches import Checksums

_MAX_ROWS = 1000  # waiting for the disk
_DEADLINE_S = 2.0


class ChecksumRows(Observer):
    """Writes a row before the first learner cycle, after those of `next_row`, and after the last.

    The rows after cycles that a program of several cycles ends with, and the last row of a run that
    a signal or a failure ends, have no trajectories.
    """

    def __init__(
        self,
        ring: Ring,
        path: pathlib.Path,
        *,
        resume_env_steps: int | None,
        check: Callable[[], None],
        on_warning: Callable[[str], None],
    ):
        """Open the file.

        Args:
            ring: a new or a restored one.
            path: the file, with the rows of the run that this one resumes.
            resume_env_steps: env steps of the checkpoint that the run resumes from; later rows are
                removed. None: a new run.
            check: raises if the file is not this run's any more.
            on_warning: takes a line of text.
        """
        self._ring = ring
        self._checksums = Checksums()
        self._on_warning = on_warning
        self._has_failed = False
        self._queue = WriterQueue(
            writer=JsonlWriter(path, resume_env_steps=resume_env_steps, on_warning=on_warning),
            on_warning=on_warning,
            max_rows=_MAX_ROWS,
            check=check,
            name=path.name,
        )
        start_daemon(self._queue.run, "writer checksums")
        self._last = ring.learner.num_cycles  # the learner cycles of the last row
        if resume_env_steps is None:
            self._write()

    def on_cycle(self, report: CycleReport) -> None:
        """Write a row if one is due."""
        is_due = next_row(report.num_cycles - 1) == report.num_cycles
        if is_due or self._ring.end.goal:
            self._write(report.unrolls)

    def close(self, end: RunEnd) -> None:
        """Write the last row, and wait for the file."""
        may_look = not end.is_learner_stuck and self._ring.is_between_cycles
        if may_look and self._ring.learner.num_cycles != self._last:
            self._write()
        self._queue.close()
        self._queue.join(_DEADLINE_S)

    def _write(self, unrolls: Sequence[Unroll] = ()) -> None:
        """Write a row; after an error, which the run does not need to end for, no more of them."""
        if self._has_failed:
            return
        try:
            self._queue.put(self._row(unrolls))
        except Exception as error:
            self._has_failed = True
            self._on_warning(f"checksums: {describe_error(error)}; training continues without them")

    def _row(self, unrolls: Sequence[Unroll]) -> Row:
        ring, state = self._ring, self._ring.learner.state
        devices = ring.learner.learner_devices  # maybe of several hosts
        trajectories = [devices.share_of_host(unroll.trajectory) for unroll in unrolls]
        leaves: dict[str, Any] = {}
        for part, trees in (
            (NETWORKS, [state.networks]),
            (OPTIMIZER, [state.opt_state]),
            (TRAJECTORIES, trajectories),
        ):
            leaves |= self._checksums.of(part, trees) if trees else {}
        self._last = ring.learner.num_cycles
        return {
            "learner_cycles": self._last,
            "env_steps": ring.progress.env_steps,
            "leaves": {name: leaf.to_json() for name, leaf in leaves.items()},
        }
