"""Saves a run while it goes, without holding it up."""

import time
from collections.abc import Callable, Sequence

from sebulba.run.assembly import Ring
from sebulba.run.state import LearnedPoints, RunState, capture
from sebulba.storage.checkpoints.checkpointer import Checkpointer, SaveError
from sebulba.types import TrajectoryItem


class Autosave:
    """Takes a copy of the run in the learner's thread, and saves it from the supervisor's.

    Where environments are made anew at fixed cycles, it is only there that a copy is taken, so that
    a run which is resumed from it does what it would have done without the break. Each such copy is
    kept until the next: a run that ends before its goal is saved as of then. One that has reached
    its goal is saved as it is.

    The learner's thread calls `after_cycle`, which costs a copy to the host when one is due; all
    that takes longer is done by whoever calls `poll` and `finish`. A copy that falls due while
    another is being saved waits for that. A save that fails is told, and training goes on: another
    is tried after the interval, and told of only if one has succeeded in between.
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
        """Begins where the ring stands.

        Args:
            ring: a new or restored one.
            checkpointer: used by the supervisor's thread alone; `finish` closes it.
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
        self._points = LearnedPoints(ring.actors)
        self._num_cycles = ring.learner.num_cycles  # that the points belong to
        self._has_warned = False
        self._is_saving = False  # written by the supervisor's thread alone
        self._copy: RunState | None = None  # on its way from the learner's to the supervisor's
        self._has_renewals = any(actor.renewal.every is not None for actor in ring.actors)
        self._is_wanted = False
        self._at_renewal: RunState | None = None  # as of the latest cycle that may be saved
        if self._has_renewals:
            self._copy_at_renewal()

    def after_cycle(self, items: Sequence[TrajectoryItem]) -> None:
        """Takes a learner cycle in, and a copy of the run if one is due."""
        self._points.advance(items)
        self._num_cycles = self._ring.learner.num_cycles
        may_be_saved = not self._has_renewals or self._copy_at_renewal()
        # All hosts agree on the cycle in which it is wanted, and so on the next that may be saved.
        self._is_wanted = self._is_wanted or (self._agreement.allows_checkpoint and self._is_due())
        if self._is_wanted and may_be_saved:
            self._is_wanted = False
            self._taken_at = self._now()
            self._copy = self._at_renewal or capture(self._ring, self._points)

    def _is_due(self) -> bool:
        if self._interval_s is None or self._is_saving or self._copy is not None:
            return False
        return self._now() - self._taken_at >= self._interval_s

    def _copy_at_renewal(self) -> bool:
        if not self._points.are_between_streams:
            return False
        self._at_renewal = capture(self._ring, self._points)
        return True

    def poll(self) -> None:
        """Begins to save a copy that is there; warns of a save that failed."""
        if self._is_saving:
            self._is_saving = self._checkpointer.is_saving()
            if not self._is_saving:
                self._warn_of_failure()
        if self._copy is not None and not self._is_saving:
            # In this order: the learner takes no other copy meanwhile.
            self._is_saving = True
            copy, self._copy = self._copy, None
            self._save(copy)

    def finish(self, *, threads_have_ended: bool) -> None:
        """Saves the run as the last whole learner cycle left it, if there is such a state.

        There is none after the learner itself has failed, or may still be running; then the last
        copy is saved.
        """
        learner = self._ring.learner
        is_whole = learner.is_between_cycles and learner.num_cycles == self._num_cycles
        progress = self._ring.progress
        is_done = progress.is_done and progress.agreement.stop_signal is None
        try:
            if self._at_renewal is not None and not is_done:
                self._copy = self._at_renewal
            elif threads_have_ended and is_whole:
                self._copy = capture(self._ring, self._points)
            if self._copy is not None:
                self._save(self._copy)
        finally:
            self._checkpointer.close()
            self._warn_of_failure()

    def _save(self, copy: RunState) -> None:
        self._checkpointer.save(copy.num_cycles, copy.arrays, copy.meta, score=copy.return_mean)

    def _warn_of_failure(self) -> None:
        try:
            self._checkpointer.check_for_errors()
            self._has_warned = False
        except SaveError as error:
            if not self._has_warned:
                self._on_warning(f"checkpoint: {error}; training goes on, and tries again")
            self._has_warned = True
