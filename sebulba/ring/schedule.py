"""Which trajectories each learner cycle takes, and how old their networks may be."""

import collections
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

_NEVER = 2**62  # a version that no run reaches


class Schedule(Protocol):
    """Decides which trajectories a learner cycle takes, and which networks actors use."""

    def min_policy_version(self, actor_id: int, actor_cycle: int) -> int:
        """Return the version to take from the staging deque for an actor's next act cycle."""
        ...

    def actors_in_turn(self, learner_cycle: int) -> list[int]:
        """Return the actors of a learner cycle's trajectories in a fixed order (serial mode)."""
        ...

    def actors_to_take(self, learner_cycle: int) -> list[int | None]:
        """Return the actors whose trajectories to wait for; None stands for any actor."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class LagSchedule:
    """The schedule of `learner.max_policy_lag`.

    With a bound, the learner takes trajectories in actor order: the `s`-th trajectory of actor `a`
    is number `g = s · num_actors + a` overall, and learner cycle `g // trajectories_per_cycle`
    takes it. Networks of version `v` have seen `v` learner cycles, so networks of version
    `g // trajectories_per_cycle - max_policy_lag` or newer keep the bound. At that moment no newer
    version than `g // trajectories_per_cycle` can exist, since the learner waits for this very
    trajectory: a bound of 0 is lock-step. None: the learner takes trajectories as they arrive, and
    actors use the newest networks.
    """

    num_actors: int
    trajectories_per_cycle: int
    max_policy_lag: int | None

    def min_policy_version(self, actor_id: int, actor_cycle: int) -> int:
        """Return the oldest version that an actor may use for its `actor_cycle`-th trajectory."""
        if self.max_policy_lag is None:
            return 0
        number = actor_cycle * self.num_actors + actor_id
        return max(0, number // self.trajectories_per_cycle - self.max_policy_lag)

    def actors_in_turn(self, learner_cycle: int) -> list[int]:
        """Return the actors of a learner cycle's trajectories, in actor order."""
        first = learner_cycle * self.trajectories_per_cycle
        numbers = range(first, first + self.trajectories_per_cycle)
        return [number % self.num_actors for number in numbers]

    def actors_to_take(self, learner_cycle: int) -> list[int | None]:
        """Return the actors whose trajectories to wait for; None stands for any actor."""
        if self.max_policy_lag is None:
            return [None] * self.trajectories_per_cycle
        return list(self.actors_in_turn(learner_cycle))


class ScheduleError(RuntimeError):
    """A recorded schedule has ended before the run."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Taken:
    """A trajectory that the learner took."""

    actor_id: int
    sequence_number: int
    policy_version: int


class RecordedSchedule:
    """The schedule of an earlier run, cycle by cycle.

    Actors ask for exactly the version of the recorded trajectory, so they need a
    `ReplayedNetworksDeque`: when they ask, the learner may be ahead.
    """

    def __init__(self, cycles: Sequence[Sequence[Taken]]):
        self._cycles = cycles
        self._versions = {
            (taken.actor_id, taken.sequence_number): taken.policy_version
            for cycle in cycles
            for taken in cycle
        }

    def min_policy_version(self, actor_id: int, actor_cycle: int) -> int:
        """Return the version that the recorded run used for this trajectory."""
        # The recorded run discarded a trajectory that is missing here: its actor waits for a
        # version that never comes, until the run closes the deques.
        return self._versions.get((actor_id, actor_cycle), _NEVER)

    def actors_in_turn(self, learner_cycle: int) -> list[int]:
        """Return the actors of a learner cycle's trajectories, in the recorded order.

        Raises:
            ScheduleError: the record has no such cycle.
        """
        if learner_cycle >= len(self._cycles):
            raise ScheduleError(
                f"run.replay_schedule: the schedule ends after {len(self._cycles)} learner cycles,"
                " before this run. Set run.total_env_steps as in the recorded run"
            )
        return [taken.actor_id for taken in self._cycles[learner_cycle]]

    def actors_to_take(self, learner_cycle: int) -> list[int | None]:
        """Return the actors whose trajectories to wait for."""
        return list(self.actors_in_turn(learner_cycle))

    def num_takers(self, actor_ids: Iterable[int]) -> Mapping[int, int]:
        """Return the number of these actors' trajectories that use each version."""
        actors = set(actor_ids)
        return collections.Counter(
            version for (actor_id, _), version in self._versions.items() if actor_id in actors
        )
