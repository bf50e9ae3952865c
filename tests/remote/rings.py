"""Rings whose remote actors are fake processes."""

from sebulba.config import (
    ActorConfig,
    CheckpointConfig,
    Config,
    DevicesConfig,
    EnvConfig,
    LearnerConfig,
    RunConfig,
)
from tests.remote.fakes import FakeProcesses, make_collector
from tests.rings import make_ring
from tests.toys import ToyConfig

CATCH = EnvConfig(suite="jax", id="Catch-v0")
CARTPOLE = EnvConfig(suite="envpool", id="CartPole-v1")
GYMNASIUM = EnvConfig(suite="gymnasium", id="CartPole-v1")


def make_config(env=CATCH, *, local=0, remote=2, lag=1, env_steps=300, exact=None, **actor):
    actor = {"num_envs": 4, "trajectory_length": 5} | actor
    return Config(
        env=env,
        devices=DevicesConfig(actor=(0,), learner=(0,)),
        actor=ActorConfig(threads_per_device=local, remote=remote, **actor),
        learner=LearnerConfig(policy_lag=lag),
        run=RunConfig(total_env_steps=env_steps, log_interval_env_steps=100),
        checkpoint=CheckpointConfig(exact_reset_cycles=exact),
        agent=ToyConfig(),
    )


def make_remote(config, dies=lambda name, method, arguments: None, **options):
    processes = FakeProcesses(dies)
    ring = make_ring(config, make_collector=make_collector(config, processes), **options)
    return ring, processes
