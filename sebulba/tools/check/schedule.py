"""When the episodes of the probe environment begin and end, and how: known in advance."""

import dataclasses

import numpy as np

_LENGTHS = (1, 2, 1, 3, 5, 8)
_BLOCKS = 8  # trajectories after which the schedule repeats itself


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ProbeSchedule:
    """Flags and counts of `P` rows, after which they repeat; row 0 is a reset of every stream."""

    terminated: np.ndarray  # [P, B] bool
    truncated: np.ndarray  # [P, B] bool
    is_first: np.ndarray  # [P, B] bool
    episode: np.ndarray  # [P, B] int32
    step: np.ndarray  # [P, B] int32, within its episode

    @property
    def period(self) -> int:
        """P."""
        return len(self.is_first)


def make_schedule(*, num_envs: int, trajectory_length: int, seed: int) -> ProbeSchedule:
    """Returns a schedule with every kind of row, of which environments differ.

    Every fourth environment has episodes of 3 steps and of more than two trajectories. Those of the
    others are of 1 to 9 steps; in every second trajectory, even ones for one half of the
    environments and odd ones for the other, one is truncated in the last row: at the border.

    Args:
        num_envs: `B`.
        trajectory_length: `T`.
        seed: of the order of the episodes.
    """
    period = _BLOCKS * trajectory_length
    columns = [
        _column(period, trajectory_length, b, np.random.default_rng([seed, b]))
        for b in range(num_envs)
    ]
    return ProbeSchedule(
        **{
            field.name: np.stack([column[field.name] for column in columns], axis=1)
            for field in dataclasses.fields(ProbeSchedule)
        }
    )


def _column(period: int, length: int, env: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    flags = {name: np.zeros(period, bool) for name in ("terminated", "truncated", "is_first")}
    counts = {name: np.zeros(period, np.int32) for name in ("episode", "step")}
    is_slow = env % 4 == 3
    row, episode, lengths = 0, 0, [2 * length + 1, 3] if is_slow else list(_LENGTHS)
    while row < period:
        if episode % len(lengths) == 0:
            rng.shuffle(lengths)
        end = row + lengths[episode % len(lengths)]
        border = (row // length + 1) * length
        # In every other trajectory the environment's last episode ends with the trajectory.
        ends_at_border = (
            not is_slow and row < border <= end + 1 and (border // length + env) % 2 == 0
        )
        # After a period the schedule begins again, with a reset.
        end = min(border if ends_at_border else end, period - 1)
        if end == period - 2:
            end = period - 1
        kind = "truncated" if ends_at_border or (episode + env) % 2 else "terminated"
        flags["is_first"][row] = True
        if end > row:
            flags[kind][end] = True
        counts["episode"][row : end + 1] = episode
        counts["step"][row : end + 1] = np.arange(end + 1 - row)
        row, episode = end + 1, episode + 1
    return flags | counts
