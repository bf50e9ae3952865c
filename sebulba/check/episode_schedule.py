"""When the probe environment's episodes begin and end, and how they end."""

import dataclasses

import numpy as np

_LENGTHS_ENV_STEPS = (1, 2, 1, 3, 5, 8)
_PERIOD_TRAJECTORIES = 8  # after which the schedule repeats


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class EpisodeSchedule:
    """The flags of `P` rows, which then repeat; row 0 is a reset of every environment."""

    terminated: np.ndarray  # [P, B] bool
    truncated: np.ndarray  # [P, B] bool
    is_first: np.ndarray  # [P, B] bool

    @property
    def period(self) -> int:
        """P."""
        return len(self.is_first)


def make_schedule(*, num_envs: int, trajectory_length: int, seed: int) -> EpisodeSchedule:
    """Return a schedule that has every kind of row, at different rows in each environment.

    Every fourth environment alternates episodes of 3 steps with ones longer than two trajectories.
    The others have episodes of 1 to 9 steps, and in every second trajectory (the even ones in half
    of these environments, the odd ones in the rest) one that is truncated in the last row.

    Args:
        num_envs: `B`.
        trajectory_length: `T`.
        seed: determines the order of the episodes.
    """
    columns = [
        _environment_flags(trajectory_length, env, np.random.default_rng([seed, env]))
        for env in range(num_envs)
    ]
    return EpisodeSchedule(
        **{name: np.stack([column[name] for column in columns], axis=1) for name in columns[0]}
    )


def _environment_flags(length: int, env: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    period = _PERIOD_TRAJECTORIES * length
    flags = {name: np.zeros(period, bool) for name in ("terminated", "truncated", "is_first")}
    is_slow = env % 4 == 3
    row, episode, lengths = 0, 0, [2 * length + 1, 3] if is_slow else list(_LENGTHS_ENV_STEPS)
    while row < period:
        if episode % len(lengths) == 0:
            rng.shuffle(lengths)
        end = row + lengths[episode % len(lengths)]
        boundary = (row // length + 1) * length
        # In every second trajectory, the last episode ends in the last row.
        ends_at_boundary = (
            not is_slow and row < boundary <= end + 1 and (boundary // length + env) % 2 == 0
        )
        # The last row of a period has to end an episode, because row 0 is a reset.
        end = min(boundary if ends_at_boundary else end, period - 1)
        if end == period - 2:
            end = period - 1
        kind = "truncated" if ends_at_boundary or (episode + env) % 2 else "terminated"
        flags["is_first"][row] = True
        if end > row:
            flags[kind][end] = True
        row, episode = end + 1, episode + 1
    return flags
