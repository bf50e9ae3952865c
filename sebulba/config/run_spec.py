"""The facts about a run that agents are built with."""

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
