"""Configs of small, briefly trained runs to evaluate."""

import dataclasses

from sebulba.config import (
    ActorConfig,
    Config,
    DevicesConfig,
    EnvConfig,
    EvaluationConfig,
    LearnerConfig,
    RunConfig,
)
from sebulba.references import CORES
from sebulba_agents.config import ImpalaConfig, RandomConfig
from sebulba_agents.replay_config import GumbelMuZeroConfig, R2D2Config, SACConfig

_ACTOR = ActorConfig(threads_per_device=1, num_envs=4, trajectory_length=8)
_REPLAY = {
    "hidden_sizes": (8,),
    "batch_size": 4,
    "replay_capacity": 2000,
    "min_replay_rows": 400,  # more than the run collects, since compiling an update takes seconds
}

CONFIGS = {
    "impala": Config(
        env=EnvConfig(suite="jax", id="Catch-v0"),
        agent=ImpalaConfig(network="mlp", hidden_sizes=(8,)),
    ),
    "cartpole": Config(
        env=EnvConfig(suite="envpool", id="CartPole-v1"),
        agent=ImpalaConfig(network="mlp", hidden_sizes=(8,)),
    ),
    "r2d2": Config(
        env=EnvConfig(suite="jax", id="Recall-v0", options={"delay": 3}),
        agent=R2D2Config(
            network="mlp",
            lstm_size=8,
            dueling_size=8,
            burn_in=0,
            learn_length=8,
            n_step=1,
            replay_ratio=1.0,
            **_REPLAY,
        ),
    ),
    "gumbel_muzero": Config(
        env=EnvConfig(suite="jax", id="Catch-v0"),
        agent=GumbelMuZeroConfig(
            latent_size=8, model_sizes=(8,), num_simulations=4, replay_ratio=1.0, **_REPLAY
        ),
    ),
    "sac": Config(
        env=EnvConfig(suite="jax", id="ContinuousBandit-v0"),
        agent=SACConfig(replay_ratio=1.0, **_REPLAY),
    ),
    "half_cheetah": Config(
        env=EnvConfig(suite="envpool", id="HalfCheetah-v4", options={"max_episode_steps": 20}),
        agent=RandomConfig(),
    ),
    "units": Config(
        env=EnvConfig(suite="gymnasium", id="tests.envs.units:Units-v0", options={"kind": "dict"}),
        agent=RandomConfig(),
    ),
    "never_ending": Config(
        env=EnvConfig(
            suite="tests.evaluation.scripted:make", id="Scripted", options={"never_ends": True}
        ),
        agent=RandomConfig(),
    ),
}

CONFIGS |= {
    f"r2d2 {core}": dataclasses.replace(
        CONFIGS["r2d2"], agent=dataclasses.replace(CONFIGS["r2d2"].agent, core=core)
    )
    for core in CORES
}


def tiny_config(name, run_dir, *, evaluation=None, **changes):
    """Return the config of a small run in lock-step, on one device."""
    config = dataclasses.replace(
        CONFIGS[name],
        devices=DevicesConfig(actor=(0,), learner=(0,)),
        actor=_ACTOR,
        learner=LearnerConfig(policy_lag=0),
        run=RunConfig(total_env_steps=200, log_interval_env_steps=100),
        evaluation=evaluation or EvaluationConfig(),
        run_dir=str(run_dir),
    )
    return dataclasses.replace(config, **changes)
