"""A short run of the toy agent."""

import dataclasses

from sebulba.config import ActorConfig, Config, DevicesConfig, EnvConfig, RunConfig
from tests.toys import ToyConfig


def make_config(run_dir, **changes):
    """Returns the config of a run of three rows of metrics, with other sections as `changes`."""
    config = Config(
        env=EnvConfig(suite="jax", id="Catch-v0"),
        devices=DevicesConfig(actor=(0,), learner=(0,)),
        actor=ActorConfig(num_envs=4),
        run=RunConfig(total_env_steps=3000, log_interval_env_steps=1000),
        agent=ToyConfig(),
        run_dir=str(run_dir),
    )
    return dataclasses.replace(config, **changes)
