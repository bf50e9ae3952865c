"""SAC against hand-fed numbers and a slow reference."""

import dataclasses
import functools

import chex
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sebulba.agent_check import validate_agent
from sebulba.check.temperature import high_target
from sebulba.errors import ConfigError
from sebulba.toolkit.replay import SequenceIds
from sebulba.toolkit.replay.transitions import Transitions
from sebulba.types import Clock, EnvironmentSpec, Trajectory
from sebulba_agents.replay_config import SACConfig
from sebulba_agents.sac import SAC
from sebulba_agents.tanh_gaussian import TanhGaussianSample
from tests.compiled import jitted, jitted_gradient
from tests.splitting import step_split, step_whole
from tests.streams import random_env_steps
from tests.toys import toy_run_spec

LENGTH, NUM_ENVS = 4, 4
CONFIG = SACConfig(
    hidden_sizes=(8,),
    batch_size=32,
    replay_capacity=NUM_ENVS * 16,
    min_replay_rows=40,
    initial_temperature=0.2,
)
RUN_SPEC = toy_run_spec(
    environment=EnvironmentSpec(
        observation=jax.ShapeDtypeStruct((3,), jnp.float32),
        action_space=gymnasium.spaces.Box(-1.0, 1.0, (2,)),
    ),
    num_envs=NUM_ENVS,
    num_actors=1,
    trajectory_length=LENGTH,
    total_env_steps=10_000,
)


LAYER_NORM = dataclasses.replace(CONFIG, critic_sizes=(8, 6), critic_layer_norm=True)


@functools.cache
def agent_and_networks(config=CONFIG):
    """Return an agent, and networks whose target critics differ from the online ones."""
    agent = SAC(config, RUN_SPEC)
    networks, other = (jitted(agent.init_networks)(jax.random.key(seed)) for seed in (0, 1))
    return agent, dataclasses.replace(networks, target_critics=other.target_critics)


def random_batch(size=32, seed=0):
    rng = np.random.default_rng(seed)
    discount = np.where(rng.random(size) < 0.3, 0.0, 0.99)
    return Transitions(
        observation=jnp.asarray(rng.normal(size=(size, 3)), jnp.float32),
        action=jnp.asarray(rng.uniform(-1, 1, (size, 2)), jnp.float32),
        reward=jnp.asarray(rng.normal(size=size), jnp.float32),
        discount=jnp.asarray(discount, jnp.float32),
        next_observation=jnp.asarray(rng.normal(size=(size, 3)), jnp.float32),
        weight=jnp.ones(size),
        ids=SequenceIds(stream=jnp.zeros(size, jnp.int32), start=jnp.arange(size, dtype=jnp.int32)),
        num_transitions=jnp.full(size, 40, jnp.int32),
    )


def random_draws(size=32, seed=1):
    rng = np.random.default_rng(seed)
    return TanhGaussianSample(
        action=jnp.asarray(rng.uniform(-1, 1, (size, 2)), jnp.float32),
        log_prob=jnp.asarray(rng.normal(size=size), jnp.float32),
    )


class FixedCritics:
    """Critics of given values, in place of the network."""

    def __init__(self, values):
        self.values = jnp.asarray(values)

    def apply(self, params, observation, action):
        return jnp.tile(self.values[:, None], (1, action.shape[0]))


def with_fixed_critics(values):
    agent = SAC(CONFIG, RUN_SPEC)
    agent._critics = FixedCritics(values)
    return agent


def test_targets_golden():
    _, networks = agent_and_networks()
    batch = dataclasses.replace(
        random_batch(2), reward=jnp.full(2, 0.5), discount=jnp.array([0.99, 0.0])
    )
    next_sample = TanhGaussianSample(action=jnp.zeros((2, 2)), log_prob=jnp.full(2, 1.809849))
    targets = with_fixed_critics([1.7, 1.4]).targets(networks, batch, next_sample)
    np.testing.assert_allclose(targets, [1.527650, 0.5], atol=2e-6)


def test_gradient_of_the_temperature_golden():
    agent, networks = agent_and_networks()
    batch, draws = random_batch(2), random_draws(2)
    sample = dataclasses.replace(draws, log_prob=jnp.full(2, 1.809849))
    gradient = jax.grad(
        lambda networks: agent.loss_of_batch(networks, batch, sample=sample, next_sample=draws)[0]
    )
    grads = jax.jit(gradient)(networks)
    np.testing.assert_allclose(grads.online.log_temperature, 0.2 * (-1.809849 + 2.0), rtol=1e-5)


def test_loss_equals_the_slow_reference():
    agent, networks = agent_and_networks()
    batch, sample, next_sample = random_batch(), random_draws(seed=1), random_draws(seed=2)
    loss, _ = jitted(agent.loss_of_batch)(networks, batch, sample=sample, next_sample=next_sample)

    apply = jax.jit(agent._critics.apply)

    def q(params, observation, action):
        return np.asarray(apply(params, observation, action), np.float64)

    critics = networks.online.critics
    stored = q(critics, batch.observation, batch.action)
    own = q(critics, batch.observation, sample.action)
    after = q(networks.target_critics, batch.next_observation, next_sample.action)
    losses = []
    for i in range(32):
        value = min(after[:, i]) - 0.2 * float(next_sample.log_prob[i])
        target = float(batch.reward[i]) + float(batch.discount[i]) * value
        log_prob = float(sample.log_prob[i])
        losses.append(
            0.5 * (stored[0, i] - target) ** 2
            + 0.5 * (stored[1, i] - target) ** 2
            + (0.2 * log_prob - min(own[:, i]))
            + 0.2 * (-log_prob + 2.0)
        )
    np.testing.assert_allclose(loss, np.mean(losses), rtol=1e-5)
    assert (own[0] < own[1]).any() and (own[0] > own[1]).any()


def test_each_loss_moves_its_own_parameters_only():
    agent, networks = agent_and_networks()
    batch = random_batch()

    def loss(networks, batch):
        policy = networks.online.policy
        sample = agent._draw(jax.random.key(3), policy, batch.observation)
        next_sample = agent._draw(jax.random.key(4), policy, batch.next_observation)
        return agent.loss_of_batch(networks, batch, sample=sample, next_sample=next_sample)[0]

    grads = jax.jit(jax.grad(loss))(networks, batch)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(grads.target_critics))
    assert all(np.any(leaf) for leaf in jax.tree.leaves(grads.online))
    other = dataclasses.replace(batch, reward=batch.reward + 5.0)
    others = jax.jit(jax.grad(loss))(networks, other)
    chex.assert_trees_all_equal(grads.online.policy, others.online.policy)
    np.testing.assert_array_equal(grads.online.log_temperature, others.online.log_temperature)
    assert not np.allclose(
        jax.tree.leaves(grads.online.critics)[0], jax.tree.leaves(others.online.critics)[0]
    )


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(CONFIG, id="default"),
        pytest.param(LAYER_NORM, id="layer norm", marks=pytest.mark.slow),
    ],
)
def test_one_and_two_learner_devices_take_the_same_step(config):
    agent, networks = agent_and_networks(config)
    opt_state = jitted(agent.init_opt_state)(networks)
    batch = random_batch()
    batch = dataclasses.replace(batch, weight=batch.weight.at[:16].multiply(0.1))
    everything = (batch, random_draws(seed=1), random_draws(seed=2))

    def loss(networks, everything):
        batch, sample, next_sample = everything
        return agent.loss_of_batch(networks, batch, sample=sample, next_sample=next_sample)[0]

    expected = step_whole(agent, loss, networks, opt_state, everything)
    got = step_split(agent, loss, networks, opt_state, everything, num_devices=2)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5), got, expected)
    assert float(expected[2]) != 0.0


def test_the_batch_and_both_samples_are_drawn_with_different_keys(monkeypatch):
    agent, networks = agent_and_networks()
    keys = []

    def recorded(function, position):
        def call(*args):
            keys.append(jax.random.key_data(args[position]))
            return function(*args)

        return call

    monkeypatch.setattr(agent._replay, "sample", recorded(lambda *args: random_batch(), 1))
    monkeypatch.setattr(agent, "_draw", recorded(agent._draw, 0))
    experience = agent.init_experience(networks, NUM_ENVS)
    loss = jax.jit(lambda *args: (agent.loss(*args), keys)[1])
    keys = loss(networks, experience, jax.random.key(0), Clock.at())
    assert len(keys) == len(np.unique(np.stack(keys), axis=0)) == 3


def test_loss_learns_from_the_replay_with_finite_gradients():
    agent, networks = agent_and_networks()
    update, experience = jitted(agent.update_experience), agent.init_experience(networks, NUM_ENVS)
    state = agent.init_actor_state((), NUM_ENVS, jax.random.key(0), 0)
    env_steps = random_env_steps(0, 4 * LENGTH, NUM_ENVS)
    rng = np.random.default_rng(0)
    for begin in range(0, 4 * LENGTH, LENGTH):
        trajectory = Trajectory(
            env_steps=jax.tree.map(lambda x: jnp.asarray(x[begin : begin + LENGTH + 1]), env_steps),  # noqa: B023
            action=jnp.asarray(rng.uniform(-1, 1, (LENGTH, NUM_ENVS, 2)), jnp.float32),
            extras=(),
        )
        experience = update(networks, experience, state, state, trajectory, jnp.int32(0))
    loss = jitted_gradient(agent.loss)
    (value, (after, metrics)), grads = loss(networks, experience, jax.random.key(0), Clock.at())
    assert np.isfinite(value) and all(np.isfinite(x).all() for x in jax.tree.leaves(grads))
    chex.assert_trees_all_equal(after, experience)
    valid = ~env_steps.done[: 4 * LENGTH - 1]
    assert int(metrics["replay_sequences"]) == np.count_nonzero(valid)


def test_optimize_moves_the_target_critics_by_the_share():
    agent, networks = agent_and_networks()
    grads = jax.tree.map(jnp.ones_like, networks)
    experience = agent.init_experience(networks, 1)
    opt_state = jitted(agent.init_opt_state)(networks)
    after, _ = jitted(agent.optimize)(networks, opt_state, grads, experience, Clock.at())

    def check(new, old, online):
        np.testing.assert_allclose(new, 0.995 * old + 0.005 * online, rtol=1e-5, atol=1e-7)

    jax.tree.map(check, after.target_critics, networks.target_critics, after.online.critics)
    # Adam's first step is the learning rate.
    np.testing.assert_allclose(
        after.online.log_temperature, np.log(0.2) - CONFIG.learning_rate, rtol=1e-5
    )


def test_act_draws_within_bounds_and_takes_the_mode_when_greedy():
    agent, networks = agent_and_networks()
    policy = agent.actor_networks(networks)
    state = agent.init_actor_state(policy, NUM_ENVS, jax.random.key(0), 0)
    env_step = jax.tree.map(lambda x: x[0], random_env_steps(0, 1, NUM_ENVS))
    act = jax.jit(functools.partial(agent.act, greedy=False))
    actions = []
    for _ in range(200):
        action, extras, state = act(policy, state, env_step)
        actions.append(np.asarray(action))
        assert extras == ()
    actions = np.stack(actions)
    assert actions.shape == (200, NUM_ENVS, 2)
    assert (np.abs(actions) <= 1.0).all() and (actions.std(axis=0) > 0.1).all()
    gaussian = jitted(agent._policy.apply)(policy, env_step.observation)
    mode, _, _ = jitted(agent.act, static_argnames="greedy")(policy, state, env_step, greedy=True)
    np.testing.assert_allclose(mode, np.tanh(gaussian.mean), rtol=1e-6)
    pre_tanh = np.arctanh(np.clip(actions, -0.999999, 0.999999))
    np.testing.assert_allclose(np.median(pre_tanh, axis=0), gaussian.mean, atol=0.4)


def test_num_updates_keep_the_replay_ratio_exactly():
    agent = SAC(dataclasses.replace(CONFIG, replay_ratio=32.0), RUN_SPEC)
    counts = [agent.num_updates_per_cycle(cycle) for cycle in range(5)]
    # 16 rows a cycle, an update each, and learning starts after 40.
    assert counts == [0, 0, 8, 16, 16]


def test_actors_get_the_policy_only():
    agent, networks = agent_and_networks()
    assert agent.actor_networks(networks) is networks.online.policy
    validate_agent(agent, RUN_SPEC)


@pytest.mark.parametrize(
    "space",
    [
        gymnasium.spaces.Discrete(3),
        gymnasium.spaces.Box(-np.inf, np.inf, (2,)),
        gymnasium.spaces.Box(-1.0, 1.0, (2, 2)),
    ],
)
def test_other_actions_are_refused(space):
    environment = dataclasses.replace(RUN_SPEC.environment, action_space=space)
    with pytest.raises(ConfigError, match="continuous, bounded actions"):
        SAC(CONFIG, dataclasses.replace(RUN_SPEC, environment=environment))


def test_the_temperature_stops_where_loss_and_gradient_are_finite_and_comes_back():
    agent, networks = agent_and_networks()
    online = dataclasses.replace(networks.online, log_temperature=jnp.float32(20.0))
    hot = dataclasses.replace(networks, online=online)
    experience = agent.init_experience(networks, 1)
    opt_state = jitted(agent.init_opt_state)(networks)
    grads = jax.tree.map(jnp.zeros_like, networks)
    for sign, expected in ((-1.0, 20.0), (1.0, 20.0 - CONFIG.learning_rate)):
        of_online = dataclasses.replace(grads.online, log_temperature=jnp.float32(sign))
        moved = dataclasses.replace(grads, online=of_online)
        after, _ = jitted(agent.optimize)(hot, opt_state, moved, experience, Clock.at())
        np.testing.assert_allclose(after.online.log_temperature, expected, rtol=1e-6)
    (loss, metrics), gradient = jitted_gradient(agent.loss_of_batch)(
        hot, random_batch(), sample=random_draws(), next_sample=random_draws(seed=2)
    )
    np.testing.assert_allclose(metrics["temperature"], np.exp(20.0), rtol=1e-5)
    assert np.isfinite(loss)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
    assert gradient.online.log_temperature != 0.0


def test_a_target_entropy_above_that_of_uniform_actions_is_refused():
    with pytest.raises(ConfigError, match=r"agent\.target_entropy: expected less .* got 3\.0"):
        SAC(dataclasses.replace(CONFIG, target_entropy=3.0), RUN_SPEC)


def test_the_check_of_the_entropy_asks_for_a_target_that_is_not_refused():
    target = high_target(RUN_SPEC.environment.action_space)
    SAC(dataclasses.replace(CONFIG, target_entropy=target), RUN_SPEC)
    with pytest.raises(ConfigError):
        SAC(dataclasses.replace(CONFIG, target_entropy=target / 0.98), RUN_SPEC)


def slow_q_with_layer_norm(critics, twin, observation, action):
    """Return Q `[n]` of a critic with LayerNorm before each ReLU, written out."""
    layers = critics["params"]["VmapCritic_0"]
    x = jnp.concatenate([observation, action], axis=-1)
    for i in range(len(LAYER_NORM.critic_sizes)):
        dense, norm = layers[f"Dense_{i + 1}"], layers[f"LayerNorm_{i}"]
        x = x @ dense["kernel"][twin] + dense["bias"][twin][None]
        centred = x - jnp.mean(x, axis=-1, keepdims=True)
        variance = jnp.mean(jnp.square(centred), axis=-1, keepdims=True)
        x = centred / jnp.sqrt(variance + 1e-6)
        x = jnp.maximum(x * norm["scale"][twin][None] + norm["bias"][twin][None], 0.0)
    head = layers["Dense_0"]
    return (x @ head["kernel"][twin] + head["bias"][twin][None])[:, 0]


def with_random_layer_norms(networks):
    """Return networks whose scales and biases of LayerNorm are not 1 and 0."""
    rng = np.random.default_rng(0)

    def moved(leaf):
        return leaf + jnp.asarray(rng.normal(size=leaf.shape, scale=0.1), jnp.float32)

    online = dataclasses.replace(
        networks.online, critics=jax.tree.map(moved, networks.online.critics)
    )
    targets = jax.tree.map(moved, networks.target_critics)
    return dataclasses.replace(networks, online=online, target_critics=targets)


def test_targets_with_layer_norm_are_those_of_critics_that_are_written_out():
    agent, networks = agent_and_networks(LAYER_NORM)
    networks = with_random_layer_norms(networks)
    batch, draws = random_batch(), random_draws()
    q = [
        slow_q_with_layer_norm(networks.target_critics, i, batch.next_observation, draws.action)
        for i in range(2)
    ]
    expected = batch.reward + batch.discount * (jnp.minimum(*q) - 0.2 * draws.log_prob)
    got = jitted(agent.targets)(networks, batch, draws)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    assert not np.allclose(got, batch.reward, atol=0.1)


def test_gradients_through_layer_norm_are_those_of_critics_that_are_written_out():
    agent, networks = agent_and_networks(LAYER_NORM)
    critics = with_random_layer_norms(networks).online.critics
    batch = random_batch()

    def of(q):
        return lambda critics, action: jnp.sum(
            jnp.square(q(critics, batch.observation, action)[0] - batch.reward)
            + q(critics, batch.observation, action)[1] * batch.reward
        )

    def slow(*args):
        return [slow_q_with_layer_norm(args[0], i, *args[1:]) for i in range(2)]

    got = jax.jit(jax.grad(of(agent._critics.apply), argnums=(0, 1)))(critics, batch.action)
    expected = jax.jit(jax.grad(of(slow), argnums=(0, 1)))(critics, batch.action)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4), got, expected)
    assert all(np.any(leaf) for leaf in jax.tree.leaves(got))


def test_critic_sizes_and_layer_norm_change_the_critics_alone():
    _, networks = agent_and_networks()
    _, others = agent_and_networks(LAYER_NORM)
    chex.assert_trees_all_equal(networks.online.policy, others.online.policy)
    assert sorted(others.online.policy["params"]) == ["Dense_0", "log_std", "mean"]
    layers = networks.online.critics["params"]["VmapCritic_0"]
    assert sorted(layers) == ["Dense_0", "Dense_1"]
    layers = others.online.critics["params"]["VmapCritic_0"]
    assert sorted(layers) == ["Dense_0", "Dense_1", "Dense_2", "LayerNorm_0", "LayerNorm_1"]
    assert layers["Dense_2"]["kernel"].shape == (2, 8, 6)


def test_critic_sizes_of_hidden_sizes_are_the_same_critics():
    same = dataclasses.replace(CONFIG, critic_sizes=CONFIG.hidden_sizes)
    chex.assert_trees_all_equal(agent_and_networks()[1], agent_and_networks(same)[1])


def test_with_polyak_1_targets_are_those_of_the_online_critics():
    agent = SAC(dataclasses.replace(CONFIG, polyak=1.0), RUN_SPEC)
    _, networks = agent_and_networks()
    experience = agent.init_experience(networks, 1)
    opt_state = jitted(agent.init_opt_state)(networks)
    grads = jax.tree.map(jnp.ones_like, networks)
    after, _ = jitted(agent.optimize)(networks, opt_state, grads, experience, Clock.at())
    chex.assert_trees_all_equal(after.target_critics, after.online.critics)
