"""The run on the probe has smaller sizes than the config's, where no question depends on them."""

import dataclasses

import gymnasium
import jax
import numpy as np
import pytest

from sebulba.check.sizes import differences, is_large, smaller
from sebulba.check.subject import assemble_subject
from sebulba.config import ActorConfig, Config, EnvConfig, LearnerConfig
from sebulba.config.run_spec import make_run_spec
from sebulba.types import EnvironmentSpec
from sebulba_agents.config import PPOConfig
from sebulba_agents.ddqn import DDQN
from sebulba_agents.replay_config import DDQNConfig, R2D2Config
from tests.check.test_faults import AGENTS, config_of

ENVIRONMENT = EnvironmentSpec(
    observation=jax.ShapeDtypeStruct((8,), np.float32),
    action_space=gymnasium.spaces.Discrete(3, dtype=np.int32),
)
ACTIONS = (
    gymnasium.spaces.Discrete(3, dtype=np.int32),
    gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32),
)
LARGE_REPLAY = {"replay_capacity": 1_000_000, "min_replay_rows": 50_000}


def make_config(agent, *, num_envs=64, length=128):
    return Config(
        env=EnvConfig(suite="jax", id="Catch-v0"),
        actor=ActorConfig(num_envs=num_envs, trajectory_length=length),
        learner=LearnerConfig(trajectories_per_cycle=2),
        agent=agent,
    )


def smallest(agent, *, is_large=True, num_learner_devices=1, num_players=1, **sizes):
    config = make_config(agent, **sizes)
    run_spec = make_run_spec(config, ENVIRONMENT, 2, num_learner_devices)
    found = smaller(config, run_spec, num_players=num_players, has_large_networks=is_large)
    return next(found)


def sizes_of(config):
    return config.actor.num_envs, config.actor.trajectory_length


def test_large_networks_see_few_environments_and_short_trajectories():
    config = smallest(PPOConfig(num_minibatches=32, num_epochs=10))
    assert sizes_of(config) == (4, 16)
    assert (config.agent.num_minibatches, config.agent.num_epochs) == (4, 2)


def test_environments_keep_all_their_players():
    config = smallest(PPOConfig(num_minibatches=32), num_envs=60, num_players=3)
    assert config.actor.num_envs == 6


def test_small_networks_keep_their_batches():
    agent = PPOConfig(num_minibatches=32, num_epochs=10)
    assert smallest(agent, is_large=False) == make_config(agent)


def test_no_size_becomes_greater():
    agent = PPOConfig(num_minibatches=1, num_epochs=1)
    assert smallest(agent, num_envs=2, length=3) == make_config(agent, num_envs=2, length=3)


def test_every_learner_device_has_an_environment_and_a_share_of_a_batch():
    agent = DDQNConfig(batch_size=192, **LARGE_REPLAY)
    config = smallest(agent, num_envs=96, num_learner_devices=6)
    assert (config.actor.num_envs, config.agent.batch_size) == (6, 18)


@pytest.mark.parametrize("is_large", [False, True])
def test_a_replay_has_the_recorded_rows_and_few_updates_in_a_cycle(is_large):
    agent = DDQNConfig(replay_ratio=512.0, **LARGE_REPLAY)
    config = smallest(agent, is_large=is_large, num_envs=16, length=16)
    rows = 2 * config.actor.num_envs * config.actor.trajectory_length
    assert config.agent.replay_capacity == 32 * rows
    assert config.agent.min_replay_rows == 6 * rows
    assert config.agent.replay_ratio * rows / config.agent.batch_size == pytest.approx(32.0)


def test_a_replay_that_is_small_is_not_changed():
    agent = DDQNConfig(replay_capacity=800, min_replay_rows=120, batch_size=16)
    config = make_config(agent, num_envs=4, length=8)
    assert smallest(agent, is_large=False, num_envs=4, length=8) == config


@pytest.mark.parametrize("name", [name for name in AGENTS if name != "muzero"])
def test_planted_faults_are_asked_with_the_sizes_that_they_have(name):
    config = config_of(AGENTS[name])
    environment = dataclasses.replace(ENVIRONMENT, action_space=ACTIONS[name == "sac"])
    run_spec = make_run_spec(config, environment, 2, 1)
    assert next(smaller(config, run_spec, num_players=1, has_large_networks=False)) == config


def test_long_sequences_have_more_rows_before_learning_starts():
    agent = DDQNConfig(n_step=60, **LARGE_REPLAY)
    config = smallest(agent, is_large=False, num_envs=4, length=8)
    assert config.agent.min_replay_rows == 20 * 2 * 4 * 8


def test_sequences_of_large_networks_are_short():
    agent = R2D2Config(burn_in=40, learn_length=80, batch_size=64, **LARGE_REPLAY)
    config = smallest(agent, num_envs=32, length=40)
    agent = config.agent
    assert (agent.burn_in, agent.learn_length, agent.batch_size) == (8, 16, 16)


def test_sizes_that_the_agent_refuses_are_not_tried():
    """Three minibatches have equal shares of six environments, and not of four."""
    agent = PPOConfig(num_minibatches=3, num_epochs=1)
    assert smallest(agent, num_envs=6, length=8) == make_config(agent, num_envs=6, length=8)


class Picky(DDQN):
    """Raises an error of its own at another size than that of its run."""

    def __init__(self, config, run_spec):
        assert config.replay_capacity == 1_000_000
        super().__init__(config, run_spec)


def test_an_agent_may_refuse_sizes_with_any_error():
    agent = DDQNConfig(name="tests.check.test_sizes:Picky", **LARGE_REPLAY)
    assert smallest(agent, is_large=False) == make_config(agent)


def test_images_of_a_screen_make_networks_large_and_vectors_do_not():
    screen = EnvironmentSpec(
        observation=jax.ShapeDtypeStruct((4, 84, 84), np.uint8),
        action_space=ENVIRONMENT.action_space,
    )
    networks = {"kernel": jax.ShapeDtypeStruct((1000, 1000), np.float32)}
    assert is_large(networks, screen) and not is_large(networks, ENVIRONMENT)


def test_a_subject_has_smaller_sizes_says_so_and_plans_the_memory_of_the_run():
    agent = DDQNConfig(hidden_sizes=(4,), **LARGE_REPLAY)
    config = make_config(agent, num_envs=4, length=8)
    subject = assemble_subject(config)
    try:
        experience = subject.ring.learner.state.experience.of_agent
        num_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(experience))
        assert num_bytes < 1_000_000 < subject.memory_plan.learner_device["experience"]
        assert "agent.replay_capacity 2,048 (1,000,000)" in subject.smaller_sizes
        assert differences(config, config) == ()
    finally:
        subject.close()
