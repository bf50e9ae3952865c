"""Saves a run while it trains, without holding it up."""

import time
from collections.abc import Callable, Sequence

from sebulba.run.assembly import Ring
from sebulba.run.state import LearnedPoints, RunState, capture
from sebulba.storage.checkpoints.checkpointer import Checkpointer, SaveError
from sebulba.storage.lock import RunDirectoryError
from sebulba.types import TrajectoryItem


class Autosave:
    """Copies the run in the learner's thread, and saves the copy from the supervisor's.

    If environments are recreated at fixed cycles, copies are taken at those cycles only, so that a
    resumed run does what the uninterrupted one would have done. Each of these copies is kept until
    the next: a run that ends before its goal is saved as of the latest of them. A run that has
    reached its goal is saved as it is.

    The learner's thread calls `after_cycle`, which copies the run to the host when a checkpoint is
    due. Slower work is done by whoever calls `poll` and `finish`. A copy that falls due while
    another is being saved waits. After a failed save training continues, and the next interval
    tries again; a repeated failure is reported only after a successful save.
    """

    def __init__(
        self,
        ring: Ring,
        checkpointer: Checkpointer,
        *,
        interval_s: float | None,
        on_warning: Callable[[str], None],
        now: Callable[[], float] = time.monotonic,
    ):
        """Start at the ring's current cycle.

        Args:
            ring: a new or restored one.
            checkpointer: used by the supervisor's thread only; `finish` closes it.
            interval_s: seconds between two copies; None: only `finish` takes one.
            on_warning: takes one line of text about a save that failed.
            now: seconds.
        """
        self._ring = ring
        self._checkpointer = checkpointer
        self._interval_s = interval_s
        self._on_warning = on_warning
        self._now = now
        self._taken_at = now()
        self._agreement = ring.progress.agreement
        self._agreement.wants_checkpoint = self._is_due
        # A host may die in a save that the others complete: all keep the one before.
        self._agreement.last_saved = lambda: checkpointer.last_saved
        checkpointer.keep_also = lambda: self._agreement.saved_by_all
        self._points = LearnedPoints(ring.actors)
        self._num_cycles = ring.learner.num_cycles  # that the points belong to
        self._has_warned = False
        self._is_saving = False  # written by the supervisor's thread only
        self._copy: RunState | None = None  # from the learner's thread to the supervisor's
        self._has_fixed_resets = any(actor.reset_policy.every is not None for actor in ring.actors)
        self._is_wanted = False
        self._at_reset: RunState | None = None  # as of the latest cycle at which all actors reset
        if self._has_fixed_resets:
            self._copy_at_reset()

    def after_cycle(self, items: Sequence[TrajectoryItem]) -> None:
        """Count a learner cycle, and copy the run if a checkpoint is due."""
        self._points.advance(items)
        self._num_cycles = self._ring.learner.num_cycles
        may_be_saved = not self._has_fixed_resets or self._copy_at_reset()
        # All hosts agree on the cycle at which it is wanted, and so on the next that may be saved.
        self._is_wanted = self._is_wanted or (self._agreement.allows_checkpoint and self._is_due())
        if self._is_wanted and may_be_saved:
            self._is_wanted = False
            self._taken_at = self._now()
            self._copy = self._at_reset or capture(self._ring, self._points)

    def _is_due(self) -> bool:
        if self._interval_s is None or self._is_saving or self._copy is not None:
            return False
        return self._now() - self._taken_at >= self._interval_s

    def _copy_at_reset(self) -> bool:
        if not self._points.are_between_streams:
            return False
        self._at_reset = capture(self._ring, self._points)
        return True

    def poll(self) -> None:
        """Start to save a waiting copy; warn of a save that failed."""
        if self._is_saving:
            self._is_saving = self._checkpointer.is_saving()
            if not self._is_saving:
                self._warn_of_failure()
        if self._copy is not None and not self._is_saving:
            # In this order: the learner takes no other copy meanwhile.
            self._is_saving = True
            copy, self._copy = self._copy, None
            self._save(copy)

    def finish(self, *, threads_have_ended: bool, may_save: bool = True) -> None:
        """Save the run as of its last complete learner cycle, and close the checkpointer.

        After a failure of the learner itself, or while it may still be running, the state may be
        that of half a cycle; then the latest copy is saved. If it is not on the disk in the end,
        `RunEnd.unsaved` says why. With `may_save` false nothing is saved.
        """
        learner = self._ring.learner
        is_between_cycles = learner.is_between_cycles and learner.num_cycles == self._num_cycles
        try:
            # No older copy beside the last one: a replay may fill half of the memory.
            self._checkpointer.wait()
            self._warn_of_failure()
            if self._at_reset is not None and not self._ring.run_end.goal:
                self._copy = self._at_reset
            elif threads_have_ended and is_between_cycles:
                self._copy = None
                self._copy = capture(self._ring, self._points)
            if self._copy is not None and may_save:
                self._ring.run_end.unsaved = self._save_for_good(self._copy)
        finally:
            self._checkpointer.close()
            self._warn_of_failure()

    def _save_for_good(self, copy: RunState) -> str | None:
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

    def _save(self, copy: RunState) -> None:
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
