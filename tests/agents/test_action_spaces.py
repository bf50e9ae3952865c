"""Multi-discrete and continuous actions: what every on-policy agent keeps with them too.

The same code serves all kinds of actions; `test_actor_critics` has the discrete ones.
"""

import dataclasses
import functools

import chex
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sebulba.agent_check import validate_agent
from sebulba.devices.learner_devices import LearnerDevices
from sebulba.toolkit.policy_heads import make_policy_head
from sebulba.types import EnvironmentSpec
from sebulba_agents.a2c import make_a2c
from sebulba_agents.actor_critic import ActorCriticExtras
from sebulba_agents.config import A2CConfig, ImpalaConfig, PPOConfig
from sebulba_agents.impala import make_impala
from sebulba_agents.ppo import PPO
from tests.compiled import jitted
from tests.on_policy import (
    LENGTH,
    NUM_ENVS,
    OBSERVATION,
    act_along_stream,
    add_trajectory,
    evaluate,
    make_networks,
    make_run_spec,
    make_stream,
)
from tests.ring_parts import make_learner, placed_item, published, update
from tests.streams import random_env_steps

SPACES = {
    "multi-discrete": gymnasium.spaces.MultiDiscrete([2, 3], dtype=np.int32),
    "continuous": gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32),
}
MAKERS = {
    "impala": (make_impala, ImpalaConfig),
    "ppo": (PPO, functools.partial(PPOConfig, num_minibatches=1)),
    "a2c": (make_a2c, A2CConfig),
}
every_kind = pytest.mark.parametrize("kind", SPACES)


@functools.cache
def make_agent(name, kind, *, num_devices=1, **changes):
    environment = EnvironmentSpec(
        observation=jax.ShapeDtypeStruct(OBSERVATION, jnp.float32), action_space=SPACES[kind]
    )
    make, make_config = MAKERS[name]
    run_spec = make_run_spec(environment=environment, num_learner_devices=num_devices)
    return make(make_config(**{"hidden_sizes": (8, 8)} | changes), run_spec)


@functools.cache
def acted(kind, lstm_size=None):
    """Return networks and what was acted with them; every agent acts by the same code."""
    agent = make_agent("a2c", kind, lstm_size=lstm_size)
    networks = make_networks(agent)
    return networks, *act_along_stream(agent, networks, make_stream())


@every_kind
def test_the_agent_keeps_the_protocol(kind):
    agent = make_agent("ppo", kind, lstm_size=6)
    validate_agent(agent, agent._run_spec)


@every_kind
def test_learner_unroll_gives_the_log_probabilities_that_the_actor_had(kind):
    networks, initial, trajectory = acted(kind, lstm_size=6)
    agent = make_agent("a2c", kind, lstm_size=6)
    outputs = jitted(agent.unroll_trajectory)(networks, initial.memory, trajectory)
    policy = jax.tree.map(lambda leaf: np.asarray(leaf)[:-1], outputs.policy)
    log_prob = jax.jit(lambda policy: policy.log_prob(trajectory.action))
    behaviour = log_prob(trajectory.extras.policy)
    assert behaviour.shape == (LENGTH, NUM_ENVS) and np.std(behaviour) > 0.1
    np.testing.assert_allclose(log_prob(policy), behaviour, rtol=1e-5, atol=1e-5)


def test_the_density_is_that_of_the_draw_and_not_of_what_the_environment_clips():
    _, _, trajectory = acted("continuous")
    assert (abs(trajectory.action) > 1.0).any()
    policy = trajectory.extras.policy
    noise = (trajectory.action - policy.mean) / np.exp(policy.log_std)
    # Draws of a standard normal: clipped ones would lie nearer.
    np.testing.assert_allclose(np.std(noise), 1.0, atol=0.2)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ppo", "continuous"),
        pytest.param("impala", "multi-discrete", marks=pytest.mark.slow),
        pytest.param("a2c", "continuous", marks=pytest.mark.slow),
    ],
)
def test_resets_teach_nothing(name, kind):
    """Neither the ignored action nor its policy matters, and final rows have no gradient."""
    agent = make_agent(name, kind)
    networks, initial, trajectory = acted(kind)
    done = ~trajectory.valid
    assert done.any()
    ignored = jnp.ones_like(trajectory.action) - trajectory.action
    nowhere = jax.tree.map(
        lambda leaf: jnp.where(done[..., None], jnp.nan, leaf), trajectory.extras.policy
    )
    changed = dataclasses.replace(
        trajectory,
        action=jnp.where(done[..., None], ignored, trajectory.action),
        extras=ActorCriticExtras(policy=nowhere),
    )
    later, update = make_networks(agent, seed=1), functools.partial(add_trajectory, agent, networks)
    expected, got = (
        evaluate(agent, later, update(initial, each)) for each in (trajectory, changed)
    )
    chex.assert_tree_all_finite(got)
    chex.assert_trees_all_equal(got, expected)
    assert all(leaf.any() for leaf in jax.tree.leaves(expected[2].params["params"]["policy"]))


NORMALIZED = {"normalize_observations": True, "normalize_rewards": True}


@functools.cache
def uneven_trajectory():
    """Return one whose first environments have far fewer valid transitions."""
    often = random_env_steps(0, LENGTH, NUM_ENVS // 2, OBSERVATION, done_probability=0.7)
    never = random_env_steps(1, LENGTH, NUM_ENVS // 2, OBSERVATION, done_probability=0.0)
    stream = jax.tree.map(lambda *x: np.concatenate(x, axis=1), often, never)
    agent = make_agent("a2c", "continuous", **NORMALIZED)
    return act_along_stream(agent, make_networks(agent), stream)


def one_update_on(num_devices):
    """Return networks and metrics after an update, and the number of valid transitions."""
    agent = make_agent(
        "ppo",
        "continuous",
        num_devices=num_devices,
        **NORMALIZED,
        optimizer="rmsprop",
        rmsprop_epsilon=0.01,
        num_epochs=1,
    )
    initial, trajectory = uneven_trajectory()
    learners = LearnerDevices(jax.devices()[:num_devices])
    learner = make_learner(agent, learners, num_envs=NUM_ENVS, seed=0)
    metrics = update(learner, [placed_item(agent, learners, initial, trajectory)])
    return jax.device_get((published(learner), metrics)), trajectory.valid.sum()


def test_the_number_of_learner_devices_never_changes_update_or_moments():
    (expected, num_valid), (got, _) = (one_update_on(number) for number in (1, 2))
    networks, _ = expected
    assert networks.normalization.observation[0].count == int(num_valid)
    chex.assert_trees_all_close(got, expected, rtol=1e-5, atol=1e-5)


def test_the_last_action_is_fed_as_one_hot_or_as_it_is():
    multi, continuous = (
        make_policy_head(space, agent="ppo", initial_log_std=0.0) for space in SPACES.values()
    )
    action = jnp.array([[[1, 2]], [[0, 0]]], jnp.int32)
    expected = [[[0, 1, 0, 0, 1]], [[1, 0, 1, 0, 0]]]
    np.testing.assert_array_equal(multi.encode(action), np.array(expected, np.float32))
    action = jnp.array([[[0.5, -2.0]]])
    np.testing.assert_array_equal(continuous.encode(action), action)


def test_continuous_actions_begin_with_the_deviation_of_the_config():
    head = make_policy_head(SPACES["continuous"], agent="ppo", initial_log_std=-1.5)
    policy, _ = head.init_with_output(jax.random.key(0), jnp.ones((1, 3, 4)))
    np.testing.assert_array_equal(policy.log_std, np.full((1, 3, 2), -1.5, np.float32))
