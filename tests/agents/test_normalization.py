"""Normalisation: what counts, that it counts once, and that acting and learning agree on it."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sebulba.toolkit.normalization import (
    Normalization,
    RunningMoments,
    discounted_returns,
    init_normalization,
    merge_normalization,
    normalization_of_rows,
)
from sebulba.types import Clock
from sebulba_agents.config import ImpalaConfig, PPOConfig
from sebulba_agents.impala import make_impala
from sebulba_agents.ppo import PPO, ppo_loss
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

DISCOUNT = 0.9
SETTINGS = {"normalize_observations": True, "normalize_rewards": True, "discount": DISCOUNT}
OBSERVATION_SPEC = {
    "camera": jax.ShapeDtypeStruct((1, 4, 4), jnp.uint8),
    "cell": jax.ShapeDtypeStruct((), jnp.int32),
    "joints": jax.ShapeDtypeStruct((2,), jnp.float32),
}


# Each is one program: called as they are, they would be one for each operation.


@functools.partial(jax.jit, static_argnums=4)
def jitted_merge_rows(before, env_steps, valid, returns_before, discount):
    added = normalization_of_rows(before, env_steps, valid, returns_before, discount)
    return merge_normalization(before, added, jnp.bool_(True))


jitted_returns = jax.jit(discounted_returns, static_argnums=2)


def moments_of(count, mean, variance):
    return RunningMoments(
        count=jnp.float32(count),
        mean=jnp.asarray(mean, jnp.float32),
        variance=jnp.asarray(variance, jnp.float32),
    )


@functools.cache
def make_agent(**changes):
    return PPO(PPOConfig(**{"hidden_sizes": (8, 8)} | SETTINGS | changes), make_run_spec())


def with_moments(networks):
    """Return networks that have seen observations far from 0 and small rewards."""
    size = OBSERVATION[0]
    normalization = Normalization(
        observation=(moments_of(50, np.arange(size), 4.0 * np.ones(size)),),
        discounted_return=moments_of(50, 0.3, 0.04),
    )
    return dataclasses.replace(networks, normalization=normalization)


def returns_in_python(env_steps, before):
    totals, total = [], np.array(before)
    for reward, is_first in zip(env_steps.reward, env_steps.is_first, strict=True):
        total = reward + DISCOUNT * np.where(is_first, 0.0, total)
        totals.append(total)
    return np.stack(totals)


def test_only_floating_leaves_are_normalized_and_clipped():
    normalization = Normalization(
        observation=(moments_of(9, [1.0, 0.0], [4.0, 1e-4]),), discounted_return=None
    )
    observation = {
        "camera": jnp.full((1, 1, 1, 4, 4), 200, jnp.uint8),
        "cell": jnp.full((1, 1), 7, jnp.int32),
        "joints": jnp.array([[[4.0, -3.0]]]),
    }
    got = normalization.normalize(observation)
    np.testing.assert_allclose(got["joints"], [[[1.5, -10.0]]], rtol=1e-5)
    for name in ("camera", "cell"):
        assert got[name] is observation[name]


@pytest.mark.parametrize("of_observations", [True, False])
def test_moments_of_nothing_leave_everything_as_it_is(of_observations):
    normalization = init_normalization(
        OBSERVATION_SPEC, of_observations=of_observations, of_rewards=of_observations
    )
    assert len(jax.tree.leaves(normalization)) == (6 if of_observations else 0)
    observation = {
        name: jnp.ones((1, 1, *leaf.shape), leaf.dtype) for name, leaf in OBSERVATION_SPEC.items()
    }
    got = normalization.normalize(observation), normalization.scale(jnp.float32(3.0))
    expected = observation, jnp.float32(3.0)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), got, expected)


def test_discounted_returns_are_those_of_a_loop_over_the_rows():
    env_steps = make_stream()
    before = np.linspace(-1, 1, NUM_ENVS).astype(np.float32)
    expected = returns_in_python(env_steps, before)
    got = jitted_returns(env_steps, before, DISCOUNT)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_each_row_of_a_stream_counts_once_however_it_is_split():
    env_steps = make_stream()
    before = np.ones(NUM_ENVS, np.float32)
    valid = ~env_steps.done[:-1]
    start = init_normalization(
        jax.ShapeDtypeStruct(OBSERVATION, jnp.float32), of_observations=True, of_rewards=True
    )
    whole = jitted_merge_rows(start, env_steps, valid, before, DISCOUNT)
    assert whole.observation[0].count == whole.discounted_return.count == int(valid.sum())
    seen = np.asarray(env_steps.observation[:-1])[np.asarray(valid)]
    np.testing.assert_allclose(whole.observation[0].mean, seen.mean(axis=0), rtol=1e-4, atol=1e-5)
    expected = returns_in_python(jax.device_get(env_steps), before)[1:][np.asarray(valid)]
    np.testing.assert_allclose(whole.discounted_return.variance, expected.var(), rtol=1e-4)
    cut = 3
    head, tail = (
        jax.tree.map(lambda x, rows=rows: x[rows], env_steps)
        for rows in (slice(cut + 1), slice(cut, None))
    )
    parts = jitted_merge_rows(start, head, valid[:cut], before, DISCOUNT)
    between = np.asarray(jitted_returns(head, before, DISCOUNT))[-2]
    parts = jitted_merge_rows(parts, tail, valid[cut:], between, DISCOUNT)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5), parts, whole)


def test_the_actor_carries_the_discounted_return_to_its_next_trajectory():
    agent = make_agent()
    networks = make_networks(agent)
    env_steps = make_stream()
    state = agent.init_actor_state(networks, NUM_ENVS, jax.random.key(0), 0)
    act = jitted(agent.act, static_argnames="greedy")
    for t in range(LENGTH):
        row = jax.tree.map(lambda x, t=t: x[t], env_steps)
        _, _, state = act(networks, state, row, greedy=False)
    expected = returns_in_python(env_steps, np.zeros(NUM_ENVS))[LENGTH - 1]
    np.testing.assert_allclose(state.memory.discounted_return, expected, rtol=1e-5, atol=1e-6)


def test_the_network_sees_what_the_moments_make_of_the_stream():
    agent, plain = make_agent(lstm_size=6), make_agent(lstm_size=6, normalize_observations=False)
    networks = with_moments(make_networks(agent))
    stream = make_stream()
    _, trajectory = act_along_stream(agent, networks, stream)
    normalized = dataclasses.replace(
        stream,
        observation=((stream.observation - np.arange(OBSERVATION[0])) / 2.0).astype(np.float32),
        reward=(stream.reward / 0.2).astype(np.float32),
    )
    networks = dataclasses.replace(
        networks, normalization=Normalization(observation=None, discounted_return=None)
    )
    _, expected = act_along_stream(plain, networks, normalized)
    np.testing.assert_allclose(
        trajectory.extras.policy.logits, expected.extras.policy.logits, rtol=1e-4, atol=1e-4
    )


def test_targets_are_of_scaled_rewards_and_the_window_keeps_raw_ones():
    agent, plain = make_agent(), make_agent(normalize_rewards=False)
    networks = with_moments(make_networks(agent))
    initial, trajectory = act_along_stream(agent, networks, make_stream())
    got = add_trajectory(agent, networks, initial, trajectory).trajectory
    np.testing.assert_array_equal(got.env_steps.reward, trajectory.env_steps.reward)
    env_steps = dataclasses.replace(
        trajectory.env_steps, reward=trajectory.env_steps.reward / jnp.float32(0.2)
    )
    scaled = dataclasses.replace(trajectory, env_steps=env_steps)
    no_scale = dataclasses.replace(networks.normalization, discounted_return=None)
    initial = dataclasses.replace(
        initial, memory=dataclasses.replace(initial.memory, discounted_return=None)
    )
    networks = dataclasses.replace(networks, normalization=no_scale)
    expected = add_trajectory(plain, networks, initial, scaled).trajectory
    np.testing.assert_allclose(
        got.extras.advantages, expected.extras.advantages, rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("num_minibatches", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_loss_of_the_users_sees_scaled_rewards(num_minibatches):
    seen = []

    def loss(outputs, batch, config):
        seen.append(batch.env_steps.reward)
        return ppo_loss(outputs, batch, config)

    config = PPOConfig(hidden_sizes=(8, 8), num_minibatches=num_minibatches, **SETTINGS)
    agent = PPO(config, make_run_spec(), loss=loss)
    networks = with_moments(make_networks(agent))
    initial, trajectory = act_along_stream(agent, networks, make_stream())
    ones = jnp.ones_like(jnp.asarray(trajectory.env_steps.reward))
    env_steps = dataclasses.replace(trajectory.env_steps, reward=ones)
    trajectory = dataclasses.replace(trajectory, env_steps=env_steps)
    experience = add_trajectory(agent, networks, initial, trajectory)
    with jax.disable_jit():
        agent.loss(networks, experience, jax.random.key(0), Clock.at())
    np.testing.assert_allclose(seen[0], 1.0 / 0.2, rtol=1e-5)


def test_moments_have_no_gradient_and_move_with_the_last_update_of_a_cycle():
    agent = make_agent(num_epochs=1, num_minibatches=2)
    networks = with_moments(make_networks(agent))
    initial, trajectory = act_along_stream(agent, networks, make_stream())
    experience = add_trajectory(agent, networks, initial, trajectory)
    _, _, grads = evaluate(agent, networks, experience)
    assert not any(leaf.any() for leaf in jax.tree.leaves(grads.normalization))
    opt_state = jitted(agent.init_opt_state)(networks)
    optimize = jitted(agent.optimize)
    first, opt_state = optimize(networks, opt_state, grads, experience, Clock.at(0))
    chex.assert_trees_all_equal(first.normalization, networks.normalization)
    second, _ = optimize(first, opt_state, grads, experience, Clock.at(1))
    expected = jitted_merge_rows(
        networks.normalization,
        trajectory.env_steps,
        trajectory.valid,
        initial.memory.discounted_return,
        DISCOUNT,
    )
    assert second.normalization.observation[0].count == 50 + int(trajectory.valid.sum())
    chex.assert_trees_all_close(second.normalization, expected, rtol=1e-5, atol=1e-6)


def test_learning_once_from_each_trajectory_merges_it_at_once():
    agent = make_impala(ImpalaConfig(hidden_sizes=(8, 8), **SETTINGS), make_run_spec())
    networks = make_networks(agent)
    initial, trajectory = act_along_stream(agent, networks, make_stream())
    window = add_trajectory(agent, networks, initial, trajectory)
    grads = jax.tree.map(jnp.zeros_like, networks)
    opt_state = jitted(agent.init_opt_state)(networks)
    after, _ = jitted(agent.optimize)(networks, opt_state, grads, window, Clock.at())
    assert after.normalization.observation[0].count == int(trajectory.valid.sum())
