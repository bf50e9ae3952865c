"""Which trajectory is learned from in which learner cycle, and how old its policy may be."""

import collections
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

_NEVER = 2**62  # a version that no run reaches


class Schedule(Protocol):
    """Says whose trajectories the learner takes when, and what actors act with."""

    def min_policy_version(self, actor_id: int, actor_cycle: int) -> int:
        """Returns the version of the networks to ask for, for an actor's next trajectory."""
        ...

    def actors_in_turn(self, learner_cycle: int) -> list[int]:
        """Returns whose trajectories a learner cycle takes, where that is known before."""
        ...

    def actors_to_take(self, learner_cycle: int) -> list[int | None]:
        """Returns whose trajectories to wait for; None: whichever comes first."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class LagSchedule:
    """The order of trajectories, and the policy-lag dial.

    With a bound on the policy lag, trajectories are taken in actor order: the `s`-th trajectory of
    actor `a` is number `g = s · num_actors + a` and is learned from in learner cycle
    `g // trajectories_per_cycle`. Networks of version `v` have seen `v` learner cycles, so acting
    with at least version `g // trajectories_per_cycle - max_policy_lag` keeps the bound; with 0
    the version is exact, and the run is in lock-step. Without a bound (None) trajectories are taken
    as they arrive, and actors use the newest networks.
    """

    num_actors: int
    trajectories_per_cycle: int
    max_policy_lag: int | None

    def min_policy_version(self, actor_id: int, actor_cycle: int) -> int:
        """Returns the oldest networks that an actor may use for its `actor_cycle`-th trajectory."""
        if self.max_policy_lag is None:
            return 0
        number = actor_cycle * self.num_actors + actor_id
        return max(0, number // self.trajectories_per_cycle - self.max_policy_lag)

    def actors_in_turn(self, learner_cycle: int) -> list[int]:
        """Returns whose trajectories learner cycle `learner_cycle` takes, in actor order."""
        first = learner_cycle * self.trajectories_per_cycle
        numbers = range(first, first + self.trajectories_per_cycle)
        return [number % self.num_actors for number in numbers]

    def actors_to_take(self, learner_cycle: int) -> list[int | None]:
        """Returns whose trajectories to wait for; None: whichever comes first."""
        if self.max_policy_lag is None:
            return [None] * self.trajectories_per_cycle
        return list(self.actors_in_turn(learner_cycle))


class ScheduleError(RuntimeError):
    """A recorded schedule has come to its end before the run has."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Taken:
    """A trajectory that the learner took."""

    actor_id: int
    sequence_number: int
    policy_version: int


class RecordedSchedule:
    """The schedule of an earlier run, step by step.

    Actors ask for exactly the version that they acted with then, which only a
    `ReplayedNetworksDeque` still has. What they acted then and was never learned from is not
    repeated: they wait in its place until the run ends.
    """

    def __init__(self, cycles: Sequence[Sequence[Taken]]):
        """Takes what each learner cycle took, from cycle 0."""
        self._cycles = cycles
        self._versions = {
            (taken.actor_id, taken.sequence_number): taken.policy_version
            for cycle in cycles
            for taken in cycle
        }

    def min_policy_version(self, actor_id: int, actor_cycle: int) -> int:
        """Returns the version that an actor's `actor_cycle`-th trajectory was acted with."""
        return self._versions.get((actor_id, actor_cycle), _NEVER)

    def actors_in_turn(self, learner_cycle: int) -> list[int]:
        """Returns whose trajectories learner cycle `learner_cycle` took, in its order.

        Raises:
            ScheduleError: none such was recorded.
        """
        if learner_cycle >= len(self._cycles):
            raise ScheduleError(
                f"run.replay_schedule: the schedule ends after {len(self._cycles)} learner cycles,"
                " and the run goes on: expected run.total_env_steps as in the recorded run"
            )
        return [taken.actor_id for taken in self._cycles[learner_cycle]]

    def actors_to_take(self, learner_cycle: int) -> list[int | None]:
        """Returns whose trajectories to wait for."""
        return list(self.actors_in_turn(learner_cycle))

    def takers(self, actor_ids: Iterable[int]) -> Mapping[int, int]:
        """Returns how many trajectories of these actors were acted with each version."""
        actors = set(actor_ids)
        return collections.Counter(
            version for (actor_id, _), version in self._versions.items() if actor_id in actors
        )
