"""Save a run while it trains, without holding it up."""

import dataclasses
import time
from collections.abc import Callable
from typing import Any

from sebulba.hosts.agreement import Agreement
from sebulba.ring.clocks import CHECKPOINT, METRICS
from sebulba.ring.records import CycleReport
from sebulba.ring.ring import Observer, Ring
from sebulba.ring.run_end import RunEnd
from sebulba.ring.state import are_between_streams, state_of
from sebulba.run.rows import MetricsRows
from sebulba.storage.checkpoints.checkpointer import Checkpointer, SaveError, Snapshot, snapshot
from sebulba.storage.lock import RunDirectoryError

FIRST_AFTER_S = 30.0
"""The first checkpoint is not later, so that a killed run does not lose everything."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _Copy:
    """A run between two learner cycles, in host memory."""

    num_cycles: int  # of the learner
    arrays: Snapshot
    meta: dict[str, Any]
    return_mean: float | None


class Autosave(Observer):
    """Copies the run in the learner's thread, and saves the copy from the thread that polls.

    If environments are recreated at fixed cycles, copies are taken at those cycles only, so that a
    resumed run does what the uninterrupted one would have done. Each of these copies is kept until
    the next: a run that ends before its goal is saved as of the latest of them. A run that has
    reached its goal is saved as it is.

    A copy that falls due while another is being saved waits. After a failed save training
    continues, and the next interval tries again; a repeated failure is reported only after a
    successful save.
    """

    def __init__(
        self,
        ring: Ring,
        checkpointer: Checkpointer,
        *,
        rows: MetricsRows,
        agreement: Agreement,
        interval_s: float | None,
        has_fixed_resets: bool = False,
        on_warning: Callable[[str], None],
        now: Callable[[], float] = time.monotonic,
    ):
        """Start at the ring's present cycle.

        Args:
            ring: a new or a restored one.
            checkpointer: used by the thread that polls; `close` closes it.
            rows: has the unfinished row of metrics.
            agreement: says when all hosts want a checkpoint.
            interval_s: seconds between two copies, of which the first is taken after at most
                `FIRST_AFTER_S`; None: only `close` takes one.
            has_fixed_resets: whether environments are recreated at fixed cycles.
            on_warning: takes one line of text about a save that failed.
            now: seconds.
        """
        self._ring = ring
        self._checkpointer = checkpointer
        self._rows = rows
        self._agreement = agreement
        # The checkpoint that the run resumes from is kept until every host has a newer one.
        agreement.last_saved = checkpointer.last_saved
        self._interval_s = interval_s
        # Until the next copy.
        self._wait_s = None if interval_s is None else min(interval_s, FIRST_AFTER_S)
        self._has_fixed_resets = has_fixed_resets
        self._on_warning = on_warning
        self._now = now
        self._taken_at = now()
        self._has_warned = False
        self._is_saving = False  # written by the thread that polls only
        self._copy: _Copy | None = None  # from the learner's thread to the one that polls
        self._is_wanted = False
        self._at_reset: _Copy | None = None  # as of the latest cycle at which all actors reset
        if has_fixed_resets and are_between_streams(ring):
            self._at_reset = self._copied()

    def on_cycle(self, report: CycleReport) -> None:
        """Copy the run if a checkpoint is due."""
        clock = self._ring.learner.clock
        clock.lap(METRICS)
        may_be_saved = True
        if self._has_fixed_resets:
            may_be_saved = are_between_streams(self._ring)
            if may_be_saved:
                self._at_reset = self._copied()
        # All hosts agree on the cycle at which it is wanted, and so on the next that may be saved.
        is_due = self._is_due()
        self._is_wanted = self._is_wanted or (self._agreement.allows_checkpoint and is_due)
        if self._is_wanted and may_be_saved:
            self._is_wanted = False
            self._taken_at, self._wait_s = self._now(), self._interval_s
            self._copy = self._at_reset or self._copied()
            is_due = False
        self._agreement.wants_checkpoint = is_due
        clock.lap(CHECKPOINT)

    def on_poll(self) -> None:
        """Start to save a waiting copy; warn of a save that failed."""
        if self._is_saving:
            self._is_saving = self._checkpointer.is_saving()
            if not self._is_saving:
                self._agreement.last_saved = self._checkpointer.last_saved
                self._warn_of_failure()
        if self._copy is not None and not self._is_saving:
            # In this order: the learner takes no other copy meanwhile.
            self._is_saving = True
            copy, self._copy = self._copy, None
            self._save(copy)

    def close(self, end: RunEnd) -> None:
        """Save the run as of its last complete learner cycle, and close the checkpointer.

        After a failure of the learner itself, or while it may still be running, the state may be
        that of half a cycle; then the latest copy is saved. A stuck actor changes nothing that has
        been learned. If it is not on the disk in the end, `end.unsaved` says why. In a directory
        that is not this run's any more nothing is saved.
        """
        try:
            # No older copy beside the last one: a replay may fill half of the memory.
            self._checkpointer.wait()
            self._warn_of_failure()
            if self._at_reset is not None and not end.goal:
                self._copy = self._at_reset
            elif not end.is_learner_stuck and self._ring.is_between_cycles:
                self._copy = None
                self._copy = self._copied()
            if self._copy is not None and not isinstance(end.failure, RunDirectoryError):
                end.unsaved = self._save_for_good(self._copy)
        finally:
            self._checkpointer.wait()
            self._warn_of_failure()

    def _is_due(self) -> bool:
        if self._wait_s is None or self._is_saving or self._copy is not None:
            return False
        return self._now() - self._taken_at >= self._wait_s

    def _copied(self) -> _Copy:
        arrays, meta = state_of(self._ring)
        meta["progress"]["row"] = self._rows.state()
        return _Copy(
            num_cycles=self._ring.learner.num_cycles,
            arrays=snapshot(arrays),
            meta=meta,
            return_mean=self._ring.progress.window.return_mean,
        )

    def _save_for_good(self, copy: _Copy) -> str | None:
        """Save a copy and wait; return why it is not on the disk, if it is not."""
        self._save(copy)
        self._checkpointer.wait()
        try:
            self._checkpointer.check_for_errors()
        except SaveError as error:
            return str(error)
        if self._checkpointer.has(copy.num_cycles):
            return None
        return f"checkpoint {copy.num_cycles} is not in {self._checkpointer.directory}"

    def _save(self, copy: _Copy) -> None:
        self._checkpointer.save(copy.num_cycles, copy.arrays, copy.meta, score=copy.return_mean)

    def _warn_of_failure(self) -> None:
        try:
            self._checkpointer.check_for_errors()
            self._has_warned = False
        except SaveError as error:
            if isinstance(error.__cause__, RunDirectoryError):
                return  # This ends the run, and is its last line.
            if not self._has_warned:
                self._on_warning(
                    f"checkpoint: {error}; training continues, and the next interval tries again"
                )
            self._has_warned = True
