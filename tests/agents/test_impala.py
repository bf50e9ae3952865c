"""IMPALA: acting and learning agree, nothing is learned from resets, and devices do not matter."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from sebulba.errors import ConfigError
from sebulba.toolkit.distributions import Categorical
from sebulba.toolkit.normalization import Normalization
from sebulba.toolkit.reductions import LEARNER_AXIS
from sebulba.toolkit.schedules import Schedule
from sebulba.toolkit.window import Window
from sebulba.types import Clock, EnvStep, Trajectory
from sebulba_agents.actor_critic import ActorCriticExtras, ActorCriticNetworks
from sebulba_agents.config import ImpalaConfig
from sebulba_agents.impala import impala_loss, make_impala
from sebulba_agents.networks import PolicyValue
from tests.compiled import jitted
from tests.on_policy import (
    LENGTH,
    NUM_ACTIONS,
    NUM_ENVS,
    OBSERVATION,
    act_along_stream,
    evaluate,
    make_experience,
    make_networks,
    make_run_spec,
    make_stream,
    to_device,
)
from tests.streams import random_env_steps

DISCOUNT = 0.9


def make_config(**changes):
    return ImpalaConfig(**{"hidden_sizes": (8, 8), "discount": DISCOUNT} | changes)


@functools.cache
def make_agent(**changes):
    """Return the agent of these settings, always the same: what is compiled of it is kept."""
    return make_impala(make_config(**changes), make_run_spec())


def make_outputs(seed=0, num_envs=NUM_ENVS):
    rng = np.random.default_rng(seed)
    return to_device(
        PolicyValue(
            policy=Categorical(
                logits=rng.normal(size=(LENGTH + 1, num_envs, NUM_ACTIONS)).astype(np.float32)
            ),
            values=rng.normal(size=(LENGTH + 1, num_envs)).astype(np.float32),
        )
    )


def make_trajectory(seed=0):
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(LENGTH, NUM_ENVS, NUM_ACTIONS)).astype(np.float32)
    action = rng.integers(0, NUM_ACTIONS, (LENGTH, NUM_ENVS)).astype(np.int32)
    trajectory = Trajectory(
        env_steps=make_stream(seed),
        action=action,
        extras=ActorCriticExtras(policy=Categorical(logits=logits)),
    )
    assert not trajectory.valid.all()
    return to_device(trajectory)


jitted_loss = jax.jit(impala_loss, static_argnames="config")


def loss_gradient(outputs, trajectory, config):
    gradient = jax.grad(lambda outputs: impala_loss(outputs, trajectory, config)[0])
    return jax.tree.map(np.asarray, jax.jit(gradient)(outputs))


@pytest.mark.parametrize("lstm_size", [None, 6])
def test_on_policy_the_importance_weights_are_one(lstm_size):
    agent = make_agent(lstm_size=lstm_size, clip_rho=10.0)
    networks = make_networks(agent)
    _, metrics, _ = evaluate(agent, networks, make_experience(agent, networks))
    np.testing.assert_allclose(metrics["rho"], 1.0, rtol=1e-5)
    np.testing.assert_allclose(metrics["kl"], 0.0, atol=1e-6)
    later = make_networks(agent, seed=1)
    _, metrics, _ = evaluate(agent, later, make_experience(agent, networks))
    assert metrics["kl"] > 1e-2 and abs(metrics["rho"] - 1) > 1e-3


def test_loss_of_one_transition_is_the_papers():
    trajectory = Trajectory(
        env_steps=EnvStep(
            observation=jnp.zeros((2, 1, 1)),
            reward=jnp.array([[7.0], [2.0]]),
            terminated=jnp.zeros((2, 1), bool),
            truncated=jnp.zeros((2, 1), bool),
            is_first=jnp.array([[True], [False]]),
        ),
        action=jnp.array([[0]], jnp.int32),
        extras=ActorCriticExtras(policy=Categorical(logits=jnp.log(jnp.array([[[0.8, 0.2]]])))),
    )
    outputs = PolicyValue(
        policy=Categorical(logits=jnp.log(jnp.array([[[0.4, 0.6]], [[0.5, 0.5]]]))),
        values=jnp.array([[0.5], [1.0]]),
    )
    config = make_config(discount=0.9, baseline_cost=0.5, entropy_cost=0.01)
    loss, metrics = jitted_loss(outputs, trajectory, config)
    # ρ = 0.4/0.8; the temporal difference is 2 + 0.9·1 − 0.5 = 2.4.
    policy_loss = -np.log(0.4) * 0.5 * 2.4
    value_loss = 0.5 * (0.5 * 2.4) ** 2
    entropy = -0.4 * np.log(0.4) - 0.6 * np.log(0.6)
    kl = 0.8 * np.log(0.8 / 0.4) + 0.2 * np.log(0.2 / 0.6)
    expected = {
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy": entropy,
        "value": 0.5,
        "rho": 0.5,
        "kl": kl,
    }
    assert metrics.keys() == expected.keys()
    for name, wanted in expected.items():
        np.testing.assert_allclose(metrics[name], wanted, rtol=1e-5)
    np.testing.assert_allclose(loss, policy_loss + 0.5 * value_loss - 0.01 * entropy, rtol=1e-5)


def test_sum_is_mean_times_the_number_of_valid_transitions():
    trajectory, outputs = make_trajectory(), make_outputs()
    mean, _ = jitted_loss(outputs, trajectory, make_config(loss_reduction="mean"))
    total, _ = jitted_loss(outputs, trajectory, make_config(loss_reduction="sum"))
    np.testing.assert_allclose(total, mean * trajectory.valid.sum().astype(jnp.float32), rtol=1e-5)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_rows_that_end_an_episode_have_no_gradient_and_all_others_have(reduction):
    trajectory = make_trajectory()
    config = make_config(loss_reduction=reduction)
    gradient = loss_gradient(make_outputs(), trajectory, config)
    valid = np.asarray(trajectory.valid)
    done = ~valid
    for leaf in (gradient.policy.logits.any(axis=-1), gradient.values != 0):
        assert not leaf[:-1][done].any()
        assert leaf[:-1][valid].all()
        assert not leaf[-1].any()


def test_only_the_value_of_a_truncated_end_is_bootstrapped_from():
    trajectory, outputs, config = make_trajectory(), make_outputs(), make_config()
    expected, _ = jitted_loss(outputs, trajectory, config)
    env_steps = trajectory.env_steps
    for ended, matters in ((env_steps.terminated, False), (env_steps.truncated, True)):
        ended = ended.at[0].set(False)
        assert ended.any()
        values = jnp.where(ended, outputs.values + 3.0, outputs.values)
        changed, _ = jitted_loss(
            PolicyValue(policy=Categorical(logits=outputs.policy.logits), values=values),
            trajectory,
            config,
        )
        assert bool(changed != expected) == matters


@pytest.mark.parametrize(
    ("reduction", "num_devices"),
    [
        ("mean", 4),
        ("sum", 2),
        pytest.param("mean", 2, marks=pytest.mark.slow),
        pytest.param("sum", 4, marks=pytest.mark.slow),
    ],
)
def test_the_number_of_learner_devices_never_changes_the_gradient(reduction, num_devices):
    agent = make_agent(loss_reduction=reduction, lstm_size=6)
    networks = make_networks(agent)
    often = random_env_steps(0, LENGTH, NUM_ENVS // 4, OBSERVATION, done_probability=0.7)
    never = random_env_steps(1, LENGTH, NUM_ENVS - NUM_ENVS // 4, OBSERVATION, done_probability=0.0)
    stream = jax.tree.map(lambda *x: np.concatenate(x, axis=1), often, never)
    experience = make_experience(agent, networks, stream)
    counts = experience.trajectory.valid.sum(axis=0).reshape(num_devices, -1).sum(axis=1)
    assert counts[0] < counts[-1]
    later = make_networks(agent, seed=1)
    value, metrics, grads = evaluate(agent, later, experience)

    def averaged(experience):
        return jax.lax.pmean(evaluate(agent, later, experience), LEARNER_AXIS)

    mapped = jax.shard_map(
        averaged,
        mesh=Mesh(np.array(jax.devices()[:num_devices]), (LEARNER_AXIS,)),
        in_specs=(
            Window(
                initial=PartitionSpec(LEARNER_AXIS),
                trajectory=PartitionSpec(None, LEARNER_AXIS),
                oldest=PartitionSpec(),
            ),
        ),
        out_specs=PartitionSpec(),
        check_vma=False,
    )
    chex.assert_trees_all_close(
        jax.jit(mapped)(experience), (value, metrics, grads), rtol=1e-5, atol=1e-5
    )


def test_rewards_are_clipped_where_they_are_learned_from():
    trajectory, outputs = make_trajectory(), make_outputs()
    clipped = dataclasses.replace(
        trajectory,
        env_steps=dataclasses.replace(
            trajectory.env_steps, reward=jnp.clip(trajectory.env_steps.reward, -0.5, 0.5)
        ),
    )
    got = jitted_loss(outputs, trajectory, make_config(reward_clip=0.5))
    expected = jitted_loss(outputs, clipped, make_config())
    chex.assert_trees_all_close(got, expected, rtol=1e-5, atol=1e-6)
    unclipped, _ = jitted_loss(outputs, trajectory, make_config())
    assert unclipped != expected[0]


def test_the_lstm_is_fed_clipped_rewards():
    row = jax.tree.map(lambda x: x[0], make_stream())
    row = dataclasses.replace(row, is_first=np.zeros(NUM_ENVS, bool))

    def logits(reward, **changes):
        agent = make_agent(lstm_size=6, **changes)
        networks = make_networks(agent)
        state = agent.init_actor_state(networks, NUM_ENVS, jax.random.key(0), 0)
        step = dataclasses.replace(row, reward=np.full(NUM_ENVS, reward, np.float32))
        act = jitted(agent.act, static_argnames="greedy")
        return act(networks, state, step, greedy=False)[1].policy.logits

    np.testing.assert_array_equal(logits(5.0, reward_clip=1.0), logits(1.0))
    assert (logits(5.0) != logits(1.0)).any()


def test_actions_are_samples_of_the_stored_policy_and_greedy_ones_its_mode():
    agent = make_agent()
    networks = make_networks(agent)
    num_envs = 4000
    observation = np.broadcast_to(np.ones(OBSERVATION, np.float32), (2, num_envs, *OBSERVATION))
    stream = random_env_steps(0, 1, num_envs, OBSERVATION)
    stream = dataclasses.replace(stream, observation=observation)
    _, trajectory = act_along_stream(agent, networks, stream)
    policy = jax.nn.softmax(trajectory.extras.policy.logits[0, 0])
    frequencies = np.bincount(trajectory.action[0], minlength=NUM_ACTIONS) / num_envs
    np.testing.assert_allclose(frequencies, policy, atol=0.03)
    assert len(np.unique(trajectory.action)) > 1
    _, trajectory = act_along_stream(agent, networks, stream, greedy=True)
    np.testing.assert_array_equal(
        trajectory.action, jnp.argmax(trajectory.extras.policy.logits, axis=-1).astype(jnp.int32)
    )


def test_each_step_samples_new_actions():
    agent = make_agent()
    networks = make_networks(agent)
    row = jax.tree.map(lambda x: x[0], make_stream())
    state = agent.init_actor_state(networks, NUM_ENVS, jax.random.key(0), 0)
    act = jitted(agent.act, static_argnames="greedy")
    first, _, following = act(networks, state, row, greedy=False)
    again, _, _ = act(networks, state, row, greedy=False)
    second, _, _ = act(networks, following, row, greedy=False)
    np.testing.assert_array_equal(first, again)
    assert (first != second).any()


def test_each_trajectory_is_learned_from_once_and_actors_get_everything():
    agent = make_agent()
    networks = jitted(agent.init_networks)(jax.random.key(0))
    assert [agent.num_updates_per_cycle(cycle) for cycle in (0, 1, 1000)] == [1, 1, 1]
    assert agent.actor_networks(networks) is networks


def networks_of(params):
    """Return networks without normalisation."""
    normalization = Normalization(observation=None, discounted_return=None)
    return ActorCriticNetworks(params=params, normalization=normalization)


def step_sizes(grads, num_updates=1, run_spec=None, **changes):
    """Return how far each of several steps on the same gradients moves a parameter of 0."""
    agent = make_impala(make_config(**changes), run_spec or make_run_spec())
    networks = networks_of(jnp.zeros_like(grads))
    opt_state = jitted(agent.init_opt_state)(networks)
    window = agent.init_experience(jitted(agent.init_networks)(jax.random.key(0)), NUM_ENVS)
    steps = []
    for _ in range(num_updates):
        moved, opt_state = jitted(agent.optimize)(
            networks, opt_state, networks_of(grads), window, Clock.at()
        )
        steps.append(np.asarray(moved.params))
    return steps


def test_rmsprop_has_epsilon_in_the_root_and_begins_with_a_second_moment_of_one():
    grads = jnp.array([3.0, -0.1])
    first, second = step_sizes(
        grads,
        num_updates=2,
        optimizer="rmsprop",
        learning_rate=0.5,
        rmsprop_decay=0.9,
        rmsprop_epsilon=0.01,
        max_grad_norm=None,
    )
    moment = 0.9 + 0.1 * np.square(grads)
    np.testing.assert_allclose(first, -0.5 * grads / np.sqrt(moment + 0.01), rtol=1e-5)
    moment = 0.9 * moment + 0.1 * np.square(grads)
    np.testing.assert_allclose(second, -0.5 * grads / np.sqrt(moment + 0.01), rtol=1e-5)


def test_adams_first_step_is_the_learning_rate_against_the_gradients_sign():
    (step,) = step_sizes(
        jnp.array([3.0, -0.1]),
        learning_rate=0.5,
        max_grad_norm=None,
        adam_epsilon=0.1,
    )
    np.testing.assert_allclose(step, [-0.5 * 3 / 3.1, 0.5 * 0.1 / 0.2], rtol=1e-5)


def test_gradients_are_clipped_to_the_global_norm_before_the_step():
    changes = {"optimizer": "rmsprop", "rmsprop_decay": 1.0, "rmsprop_epsilon": 0.0}
    changes |= {"learning_rate": 1.0}
    (clipped,) = step_sizes(jnp.array([30.0, 40.0]), max_grad_norm=5.0, **changes)
    np.testing.assert_allclose(clipped, [-3.0, -4.0], rtol=1e-5)
    (small,) = step_sizes(jnp.array([0.3, 0.4]), max_grad_norm=5.0, **changes)
    np.testing.assert_allclose(small, [-0.3, -0.4], rtol=1e-5)


def test_the_learning_rate_follows_its_schedule_of_env_steps_learned_from():
    rate = Schedule(schedule="linear", start=1.0, end=0.0)
    config = make_config(
        optimizer="rmsprop",
        rmsprop_decay=1.0,
        rmsprop_epsilon=0.0,
        learning_rate=rate,
        max_grad_norm=None,
    )
    agent = make_impala(config, make_run_spec(total_env_steps=100))
    grads = networks_of(jnp.array([2.0]))
    networks = networks_of(jnp.zeros(1))
    opt_state = jitted(agent.init_opt_state)(networks)
    window = agent.init_experience(jitted(agent.init_networks)(jax.random.key(0)), NUM_ENVS)
    steps = []
    for env_steps in (0, 25, 50, 100, 120):
        clock = Clock.at(env_steps=env_steps)
        moved, _ = jitted(agent.optimize)(networks, opt_state, grads, window, clock)
        steps.append(moved.params)
    np.testing.assert_allclose(np.ravel(steps), [-2.0, -1.5, -1.0, 0.0, 0.0], rtol=1e-5)


def test_a_network_that_cannot_take_the_observation_is_refused():
    with pytest.raises(ConfigError, match=r"agent\.network: deep expects an image"):
        make_agent(network="deep")
