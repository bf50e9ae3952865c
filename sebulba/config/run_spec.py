"""The facts about a run that agents are built with."""

import math

from sebulba.config import ActorConfig, Config
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
        groups=config.env.groups,
    )


def num_actors_of_host(actor: ActorConfig, num_devices: int) -> int:
    """Return the number of actors of a host with `num_devices` actor devices."""
    return num_devices * actor.threads_per_device + actor.remote


def queue_slots_per_actor(config: Config, num_actors: int) -> int:
    """Return `learner.queue_slots_per_actor`, or what the policy lag needs if that is null.

    With a policy lag of `k` an actor may be `k` learner cycles ahead; with fewer slots it would
    wait for the learner although its networks are there.
    """
    slots, lag = config.learner.queue_slots_per_actor, config.policy_lag
    if slots is not None:
        return slots
    ahead = 1 if lag is None else (lag + 1) * config.learner.trajectories_per_cycle
    return math.ceil(ahead / num_actors)
