"""PPO: the clipped objective, targets of one parameter version, and minibatches."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sebulba.errors import ConfigError
from sebulba.toolkit.distributions import Categorical
from sebulba.toolkit.minibatches import TransitionBatch, next_minibatch
from sebulba.toolkit.returns import gae
from sebulba.types import Clock
from sebulba_agents.config import PolicyGradientConfig, PPOConfig
from sebulba_agents.networks import PolicyValue
from sebulba_agents.policy_gradient import make_policy_gradient
from sebulba_agents.ppo import PPO, Targets, clipped_surrogate, ppo_loss
from tests.compiled import jitted, jitted_gradient
from tests.on_policy import (
    LENGTH,
    NUM_ENVS,
    act_along_stream,
    add_trajectory,
    evaluate,
    make_experience,
    make_networks,
    make_run_spec,
    make_stream,
)

CLIP = 0.2  # the default


def make_config(**changes):
    return PPOConfig(**{"hidden_sizes": (8, 8)} | changes)


@functools.cache
def make_agent(**changes):
    """Return the agent of these settings, always the same: what is compiled of it is kept."""
    return PPO(make_config(**changes), make_run_spec())


jitted_loss = jax.jit(ppo_loss, static_argnames="config")


def row(*numbers):
    return np.array([numbers], np.float32)


def make_minibatch(*, advantages, log_probs, values, valid=None):
    """Return transitions `[1, B]` in which action 0 of 2 was taken."""
    shape = advantages.shape
    return TransitionBatch(
        env_steps=None,
        action=np.zeros(shape, np.int32),
        valid=np.ones(shape, bool) if valid is None else np.array([valid]),
        extras=Targets(log_probs=log_probs, values=values, advantages=advantages),
    )


def logits_of(probabilities):
    """Return `[1, B, 2]`, by the probability of action 0."""
    return np.log(np.stack([probabilities, 1.0 - probabilities], axis=-1))


def test_the_surrogate_is_clipped_only_where_that_lowers_it():
    ratios, ones = jnp.array([0.5, 0.95, 1.05, 1.5]), jnp.ones(4)
    gained = clipped_surrogate(ratios, ones, CLIP)
    np.testing.assert_allclose(gained, [0.5, 0.95, 1.05, 1.2], rtol=1e-6)
    lost = clipped_surrogate(ratios, -ones, CLIP)
    np.testing.assert_allclose(lost, [-0.8, -0.95, -1.05, -1.5], rtol=1e-6)


def test_loss_of_two_transitions_is_the_papers():
    config = make_config(normalize_advantages=False, baseline_cost=0.5, entropy_cost=0.01)
    probabilities = row(0.6, 0.3)
    minibatch = make_minibatch(
        advantages=row(2.0, -1.0), log_probs=np.log(row(0.4, 0.6)), values=row(1.0, 3.0)
    )
    outputs = PolicyValue(policy=Categorical(logits=logits_of(probabilities)), values=row(2.0, 2.5))
    loss, metrics = jitted_loss(outputs, minibatch, config)
    # Ratios 1.5 and 0.5; the returns are 1 + 2 and 3 − 1.
    policy_loss = -(1.2 * 2.0 + 0.8 * -1.0) / 2
    value_loss = 0.5 * ((2.0 - 3.0) ** 2 + (2.5 - 2.0) ** 2) / 2
    entropy = -sum(p * np.log(p) + (1 - p) * np.log(1 - p) for p in (0.6, 0.3)) / 2
    expected = {
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy": entropy,
        "value": 2.25,
        "kl": (0.5 - np.log(1.5) - 0.5 - np.log(0.5)) / 2,
        "clip_fraction": 1.0,
    }
    assert metrics.keys() == expected.keys()
    for name, wanted in expected.items():
        np.testing.assert_allclose(metrics[name], wanted, rtol=1e-5)
    np.testing.assert_allclose(loss, policy_loss + 0.5 * value_loss - 0.01 * entropy, rtol=1e-5)


def test_advantages_are_normalised_over_valid_transitions_alone():
    minibatch = make_minibatch(
        advantages=row(3.0, 100.0, 1.0),
        log_probs=np.log(row(0.5, 0.5, 0.5)),
        values=row(0.0, 0.0, 0.0),
        valid=[True, False, True],
    )
    outputs = PolicyValue(
        policy=Categorical(logits=logits_of(row(0.55, 0.9, 0.45))), values=row(0.0, 0.0, 0.0)
    )
    _, metrics = jitted_loss(outputs, minibatch, make_config())
    np.testing.assert_allclose(metrics["policy_loss"], -(1.1 - 0.9) / 2, rtol=1e-5)


def test_a_value_beyond_its_clip_has_no_gradient_unless_that_would_be_an_advantage():
    minibatch = make_minibatch(
        advantages=row(3.0, 3.0, -3.0),
        log_probs=np.log(row(0.5, 0.5, 0.5)),
        values=row(0.0, 0.0, 0.0),
    )
    values = row(0.5, 0.1, 0.5)

    def gradient(value_clip):
        config = make_config(value_clip=value_clip, baseline_cost=1.0)

        def loss(values):
            outputs = PolicyValue(
                policy=Categorical(logits=logits_of(row(0.5, 0.5, 0.5))), values=values
            )
            return ppo_loss(outputs, minibatch, config)[0]

        return jax.jit(jax.grad(loss))(values)

    # The returns are 3, 3 and −3; the last value went the wrong way.
    np.testing.assert_allclose(gradient(0.2), row(0.0, -2.9, 3.5) / 3, rtol=1e-5)
    np.testing.assert_allclose(gradient(None), row(-2.5, -2.9, 3.5) / 3, rtol=1e-5)


@pytest.mark.parametrize("lstm_size", [None, 6])
def test_targets_are_of_the_parameters_that_the_cycle_begins_with(lstm_size):
    agent = make_agent(lstm_size=lstm_size, lambda_=0.9, discount=0.8)
    behaviour, learner = make_networks(agent), make_networks(agent, seed=1)
    initial, trajectory = act_along_stream(agent, behaviour, make_stream())
    experience = add_trajectory(agent, learner, initial, trajectory)
    last_action = np.concatenate([initial.memory.last_action[None], trajectory.action])
    unroll = jitted(agent.unroll)
    values = unroll(learner, trajectory.env_steps, last_action, initial.memory.core)[0].values
    targets = experience.trajectory.extras
    np.testing.assert_allclose(targets.values, values[:-1], rtol=1e-5, atol=1e-6)
    env_steps = jax.tree.map(np.asarray, trajectory.env_steps)
    expected = jax.jit(gae, static_argnames="lambda_")(
        rewards=env_steps.reward[1:],
        discounts=np.where(env_steps.terminated[1:], np.float32(0.0), np.float32(0.8)),
        valid=~env_steps.done[:-1],
        values=values,
        lambda_=0.9,
    )
    np.testing.assert_allclose(targets.advantages, expected, rtol=1e-4, atol=1e-5)
    log_prob = jax.jit(lambda policy, action: policy.log_prob(action))
    taken = log_prob(trajectory.extras.policy, trajectory.action)
    np.testing.assert_allclose(targets.log_probs, taken, rtol=1e-5)
    _, (later, _) = jitted(agent.loss)(behaviour, experience, jax.random.key(0), Clock.at())
    chex.assert_trees_all_equal(later.trajectory, experience.trajectory)


@pytest.mark.parametrize("lstm_size", [None, 6])
def test_minibatches_partition_each_epoch_and_every_epoch_is_reshuffled(lstm_size):
    agent = make_agent(lstm_size=lstm_size, num_epochs=2, num_minibatches=4)
    networks = make_networks(agent)
    experience = make_experience(agent, networks)
    num_entries = NUM_ENVS if lstm_size else LENGTH * NUM_ENVS
    steps = range(agent.num_updates_per_cycle(7))
    chosen = [np.asarray(next_minibatch(experience, Clock.at(step), 4)) for step in steps]
    epochs = [np.concatenate(chosen[:4]), np.concatenate(chosen[4:])]
    assert [sorted(each) for each in epochs] == [list(range(num_entries))] * 2
    assert (epochs[0] != epochs[1]).any() and (epochs[0] != np.arange(num_entries)).any()


@pytest.mark.parametrize("lstm_size", [None, pytest.param(6, marks=pytest.mark.slow)])
def test_the_minibatches_of_an_epoch_have_the_gradient_of_the_whole(lstm_size):
    never_done = make_stream(done_probability=0.0)
    # Without the resets and the normalisation that make minibatches count differently.
    changes = {"lstm_size": lstm_size, "normalize_advantages": False}
    whole = make_agent(num_minibatches=1, **changes)
    networks, later = make_networks(whole), make_networks(whole, seed=1)
    expected = evaluate(whole, later, make_experience(whole, networks, never_done))
    parts = make_agent(num_minibatches=4, **changes)
    experience = make_experience(parts, networks, never_done)
    loss = jitted_gradient(parts.loss)
    results = []
    for step in range(4):
        (value, (experience, metrics)), grads = loss(
            later, experience, jax.random.key(step), Clock.at(step)
        )
        results.append((value, metrics, grads))
    mean = jax.tree.map(lambda *x: np.mean(np.stack(x), axis=0), *results)
    chex.assert_trees_all_close(mean, expected, rtol=1e-4, atol=1e-5)
    assert abs(results[0][0] - results[1][0]) > 1e-4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_minibatches": 3}, r"divisor of the 56 transitions .* got 3. Set 2 or 4$"),
        (
            {"num_minibatches": 7, "lstm_size": 6},
            r"divisor of the 8 environments .* got 7. Set 4 or 8$",
        ),
        ({"num_minibatches": 99}, r"divisor of the 56 transitions .* got 99. Set 56$"),
    ],
)
def test_minibatches_that_do_not_divide_the_batch_name_the_key(changes, message):
    with pytest.raises(ConfigError, match=rf"agent\.num_minibatches: expected .*{message}"):
        make_agent(**changes)


def test_minibatches_of_one_transition_are_not_standardised():
    one = make_run_spec(num_envs=1, trajectory_length=1)
    with pytest.raises(ConfigError, match="minibatches of 1 transition, which are always 0"):
        PPO(PPOConfig(num_minibatches=1), one)
    PPO(PPOConfig(num_minibatches=1, normalize_advantages=False), one)
    PPO(PPOConfig(num_minibatches=1), dataclasses.replace(one, num_hosts=2))
    with pytest.raises(ConfigError, match="returns of batches of 1 transition"):
        make_policy_gradient(PolicyGradientConfig(), one)


def test_rewards_are_clipped_where_they_are_learned_from():
    stream = make_stream()
    clipped = dataclasses.replace(stream, reward=np.clip(stream.reward, -0.5, 0.5))
    agent, plain = make_agent(reward_clip=0.5), make_agent()
    networks = make_networks(agent)
    got, expected, unclipped = (
        make_experience(each, networks, rows).trajectory.extras.advantages
        for each, rows in ((agent, stream), (plain, clipped), (plain, stream))
    )
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    assert (abs(got - unclipped) > 1e-2).any()
