"""The facts about a run that agents are built with."""

import math

from sebulba.config import Config
from sebulba.types import EnvironmentSpec, RunSpec


def make_run_spec(
    config: Config,
    environment: EnvironmentSpec,
    num_actors: int,
    num_learner_devices: int,
    *,
    num_hosts: int = 1,
) -> RunSpec:
    """Return the `RunSpec` of a config. Counts are per host; `num_cycles` covers the run."""
    steps_per_cycle = (
        num_hosts
        * config.actor.num_envs
        * config.actor.trajectory_length
        * config.learner.trajectories_per_cycle
    )
    return RunSpec(
        environment=environment,
        num_envs=config.actor.num_envs,
        num_actors=num_actors,
        num_learner_devices=num_learner_devices,
        trajectory_length=config.actor.trajectory_length,
        trajectories_per_cycle=config.learner.trajectories_per_cycle,
        num_cycles=math.ceil(config.run.total_env_steps / steps_per_cycle),
        num_hosts=num_hosts,
    )
