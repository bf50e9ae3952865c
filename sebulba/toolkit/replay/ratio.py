"""The replay ratio: rows learned from per row collected after the replay's minimum.

Reset rows, and rows that repeat a final one, count as collected.
"""

import fractions
import math

import jax
import jax.numpy as jnp

from sebulba.agent import Metrics
from sebulba.toolkit.replay.buffer import ReplayState
from sebulba.types import RunSpec


class ReplayRatio:
    """The exact number of updates that keeps the replay ratio."""

    def __init__(
        self,
        run_spec: RunSpec,
        *,
        replay_ratio: float,
        min_replay_rows: int,
        rows_per_update: int,
    ):
        """Take the ratio, and the rows that an update learns from on this host."""
        self._run_spec = run_spec
        self._replay_ratio = replay_ratio
        self._min_replay_rows = min_replay_rows
        self._rows_per_update = rows_per_update

    def num_updates_in(self, cycle: int) -> int:
        """Return the number of updates of learner cycle `cycle`; 0 while the replay fills.

        Rounding does not accumulate: up to any cycle, the updates of all cycles together are the
        rows collected after `min_replay_rows`, times the replay ratio, over `rows_per_update`.
        """
        return self._num_updates_before(cycle + 1) - self._num_updates_before(cycle)

    def metrics(
        self, experience: ReplayState, step: jax.Array, num_sequences: jax.Array
    ) -> Metrics:
        """Return the actual replay ratio, and the number of sequences in the replay.

        Args:
            experience: this learner device's; all devices store the same number of rows.
            step: int32 `[]`, updates before this one.
            num_sequences: int32 `[]`, sequences that this device can draw.
        """
        # float32, because a long run on many environments overflows int32.
        num_rows = jnp.sum(experience.num_rows.astype(jnp.float32)) * self._run_spec.num_streams
        learned = (step + 1).astype(jnp.float32) * float(self._rows_per_update)
        return {
            "replay_ratio": learned / jnp.maximum(num_rows - self._min_replay_rows, 1.0),
            "replay_sequences": num_sequences.astype(jnp.float32)
            * self._run_spec.num_learner_devices,
        }

    def _num_updates_before(self, cycle: int) -> int:
        spec = self._run_spec
        rows = cycle * spec.trajectories_per_cycle * spec.num_streams * spec.trajectory_length
        # From the decimal digits: the float 0.3 is slightly less than three tenths.
        ratio = fractions.Fraction(str(self._replay_ratio))
        learned_rows = max(0, rows - self._min_replay_rows) * ratio
        return math.floor(learned_rows / self._rows_per_update)
