"""Agents with each core of the table: learning sees what acting saw, from one place to the next."""

import dataclasses
import functools

import chex
import jax
import numpy as np
import pytest

from sebulba.agent_check import validate_sharded_state
from sebulba.devices.learner_devices import LearnerDevices
from sebulba.references import CORES
from sebulba_agents.config import PPOConfig
from sebulba_agents.ppo import PPO
from sebulba_agents.r2d2 import R2D2
from tests.agents.r2d2_life import (
    CONFIG,
    LENGTH,
    RUN_SPEC,
    check_stored_memory,
    draw,
    live,
    random_rows,
    remember,
    unrolled_q,
)
from tests.compiled import jitted
from tests.on_policy import (
    NUM_ENVS,
    act_along_stream,
    make_networks,
    make_run_spec,
    make_stream,
)
from tests.ring_parts import make_learner, placed_item, published, update

every_core = pytest.mark.parametrize("core", CORES)


def settings_of(core):
    # Less than the rows of a trajectory.
    options = {"memory_length": 3, "layers": 2} if core == "gtrxl" else {}
    return {"core": core, "core_options": options, "lstm_size": 8}


@functools.cache
def make_ppo(core, **run_spec):
    config = PPOConfig(hidden_sizes=(8,), num_minibatches=1, num_epochs=1, **settings_of(core))
    return PPO(config, make_run_spec(**run_spec))


@every_core
@pytest.mark.parametrize("greedy", [False, True])
def test_the_learners_policy_is_the_one_that_acted(core, greedy):
    agent = make_ppo(core)
    networks = make_networks(agent)
    initial, trajectory = act_along_stream(agent, networks, make_stream(), greedy=greedy)
    learned = jitted(agent.unroll_trajectory)(networks, initial.memory, trajectory).policy
    acted = trajectory.extras.policy
    np.testing.assert_allclose(learned.logits[:-1], acted.logits, rtol=1e-4, atol=1e-4)


@every_core
def test_every_leaf_of_the_state_is_split_over_the_learner_devices(core):
    agent, learners = make_ppo(core), LearnerDevices(jax.devices())
    networks = jitted(agent.init_networks)(jax.random.key(0))
    state = agent.init_actor_state(networks, NUM_ENVS, jax.random.key(0), 0)
    placed = agent.shard_actor_state(state, learners)
    validate_sharded_state(placed, state, jax.devices())
    for leaf in jax.tree.leaves(placed.memory):
        assert leaf.addressable_shards[0].data.shape[0] == NUM_ENVS // len(learners)


@pytest.mark.slow
@every_core
def test_two_learner_devices_learn_what_one_does(core):
    def learned_on(num_devices):
        learners = LearnerDevices(jax.devices()[:num_devices])
        agent = make_ppo(core, num_learner_devices=num_devices)
        learner = make_learner(agent, learners, num_envs=NUM_ENVS, seed=0)
        initial, trajectory = act_along_stream(agent, make_networks(agent, 1), make_stream())
        metrics = update(learner, [placed_item(agent, learners, initial, trajectory)])
        return jax.device_get((published(learner), metrics))

    chex.assert_trees_all_close(learned_on(2), learned_on(1), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@every_core
def test_a_replay_keeps_the_state_that_the_actor_had_and_learns_from_it(core):
    agent = R2D2(dataclasses.replace(CONFIG, **settings_of(core)), RUN_SPEC)
    networks = jitted(agent.init_networks)(jax.random.key(0))
    trajectories = live(agent, networks, random_rows(8 * LENGTH + 1), 8)
    sample = draw(remember(agent, networks, trajectories))
    check_stored_memory(agent, networks, trajectories, sample)
    q = unrolled_q(agent, networks.online, sample.sequences)
    taken = np.take_along_axis(q, np.asarray(sample.sequences.rows.action)[..., None], -1)[..., 0]
    np.testing.assert_allclose(sample.sequences.rows.extras.taken, taken, atol=1e-4)
