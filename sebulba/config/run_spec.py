"""The facts about a run that agents are built with."""

import math

from sebulba.config import Config, LearnerConfig
from sebulba.types import EnvironmentSpec, RunSpec


def make_run_spec(
    config: Config,
    environment: EnvironmentSpec,
    num_actors: int,
    num_learner_devices: int,
    *,
    num_hosts: int = 1,
) -> RunSpec:
    """Return the `RunSpec` of a config. Counts are per host, except `total_env_steps`."""
    return RunSpec(
        environment=environment,
        num_envs=config.actor.num_envs,
        num_actors=num_actors,
        num_learner_devices=num_learner_devices,
        trajectory_length=config.actor.trajectory_length,
        trajectories_per_cycle=config.learner.trajectories_per_cycle,
        total_env_steps=config.run.total_env_steps,
        num_hosts=num_hosts,
    )


def queue_slots_per_actor(learner: LearnerConfig, num_actors: int) -> int:
    """Return `learner.queue_slots_per_actor`, or what the policy lag needs if that is null.

    With a policy lag of `k` an actor may be `k` learner cycles ahead; with fewer slots it would
    wait for the learner although its networks are there.
    """
    if learner.queue_slots_per_actor is not None:
        return learner.queue_slots_per_actor
    cycles = (learner.policy_lag or 0) + 1
    ahead = cycles * learner.trajectories_per_cycle if learner.policy_lag is not None else 1
    return math.ceil(ahead / num_actors)
