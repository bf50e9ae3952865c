"""Which trajectories each learner cycle takes, and which networks each of them is acted with."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schedule:
    """The order of a run, from `learner.policy_lag`.

    With a policy lag of `k`, the learner takes trajectories in actor order: the `s`-th trajectory
    of actor `a` is number `g = s · num_actors + a` overall, and learner cycle
    `c = g // trajectories_per_cycle` takes it. It is acted with networks of version
    `max(0, c - k)` exactly, a version being the number of learner cycles that made the networks. So
    nothing depends on the threads' timing, whatever `k` is; 0 is lock-step. None is free-running:
    the learner takes trajectories as they arrive, and actors use the newest networks.
    """

    num_actors: int
    trajectories_per_cycle: int
    policy_lag: int | None
    slots_per_actor: int = 1  # trajectories of an actor that wait for the learner, at most

    def policy_version(self, actor_id: int, actor_cycle: int) -> int | None:
        """Return the version for an actor's `actor_cycle`-th trajectory; None: the newest."""
        if self.policy_lag is None:
            return None
        number = actor_cycle * self.num_actors + actor_id
        return max(0, number // self.trajectories_per_cycle - self.policy_lag)

    def actors_in_turn(self, learner_cycle: int) -> list[int]:
        """Return the actors of a learner cycle's trajectories, in actor order."""
        first = learner_cycle * self.trajectories_per_cycle
        numbers = range(first, first + self.trajectories_per_cycle)
        return [number % self.num_actors for number in numbers]

    def actors_to_take(self, learner_cycle: int) -> list[int | None]:
        """Return the actors whose trajectories to wait for; None stands for any actor."""
        if self.policy_lag is None:
            return [None] * self.trajectories_per_cycle
        return list(self.actors_in_turn(learner_cycle))

    @property
    def num_staged(self) -> int:
        """Versions that an actor device has to hold.

        Before the learner finishes cycle `c`, it has taken all trajectories of earlier cycles, so
        the versions that somebody still has to take are `c - k … c`.
        """
        return (self.policy_lag or 0) + 1
