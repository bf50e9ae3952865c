"""Which trajectory is learned from in which learner cycle, and how old its policy may be."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schedule:
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
