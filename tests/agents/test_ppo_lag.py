"""PPO with data of older networks: the decoupled objective and V-trace targets."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sebulba.toolkit.distributions import Categorical
from sebulba.toolkit.minibatches import TransitionBatch
from sebulba.types import Clock, EnvStep, Trajectory
from sebulba_agents.actor_critic import ActorCriticExtras
from sebulba_agents.config import PPOConfig
from sebulba_agents.networks import PolicyValue
from sebulba_agents.ppo import PPO, Targets, compute_targets, ppo_loss
from tests.check import faulty_ppo
from tests.check.faulty_base import FaultyConfig
from tests.compiled import jitted, jitted_gradient
from tests.on_policy import (
    LENGTH,
    NUM_ACTIONS,
    NUM_ENVS,
    OBSERVATION,
    act_along_stream,
    add_trajectory,
    make_networks,
    make_run_spec,
    make_stream,
)
from tests.streams import random_env_steps

LAGGING = [
    {"objective": "decoupled"},
    {"targets": "vtrace"},
    {"objective": "decoupled", "targets": "vtrace"},
]
jitted_targets = jax.jit(compute_targets, static_argnames="config")
jitted_loss = jax.jit(ppo_loss, static_argnames="config")


def row(*numbers):
    return np.array([numbers], np.float32)


def two_actions(probabilities):
    """Return the policy `[..., 2]` with these probabilities of action 0."""
    return Categorical(logits=np.log(np.stack([probabilities, 1.0 - probabilities], axis=-1)))


def column(*numbers, dtype=np.float32):
    return np.array(numbers, dtype)[:, None]


def make_trajectory(*, rewards, terminated, truncated, behaviour, action):
    """Return the trajectory of a stream `[T + 1, B]`, whose rows after an end are resets."""
    done = terminated | truncated
    is_first = np.concatenate([np.ones_like(done[:1]), done[:-1]])
    env_steps = EnvStep(
        observation=np.zeros((*done.shape, 1), np.float32),
        reward=rewards,
        terminated=terminated,
        truncated=truncated,
        is_first=is_first,
    )
    return Trajectory(
        env_steps=env_steps, action=action, extras=ActorCriticExtras(policy=behaviour)
    )


def test_the_decoupled_loss_of_two_transitions_is_the_papers():
    config = PPOConfig(
        objective="decoupled", normalize_advantages=False, baseline_cost=0.5, entropy_cost=0.0
    )
    # Two environments, one transition each, in which action 0 was taken; both values are 0.
    trajectory = make_trajectory(
        rewards=np.array([[0.0, 0.0], [2.0, -1.0]], np.float32),
        terminated=np.array([[False, False], [True, True]]),
        truncated=np.zeros((2, 2), bool),
        behaviour=two_actions(row(0.5, 0.4)),
        action=np.zeros((1, 2), np.int32),
    )
    proximal = PolicyValue(
        policy=two_actions(np.float32([[0.4, 0.5], [0.5, 0.5]])), values=np.zeros((2, 2))
    )
    targets = jitted_targets(proximal, trajectory, config)
    np.testing.assert_allclose(np.exp(targets.log_probs), row(0.4, 0.5), rtol=1e-6)
    np.testing.assert_allclose(targets.weights, row(0.8, 1.25), rtol=1e-6)
    np.testing.assert_allclose(targets.advantages, row(2.0, -1.0), rtol=1e-6)
    batch = TransitionBatch(
        env_steps=None, action=trajectory.action, valid=trajectory.valid, extras=targets
    )
    learned = PolicyValue(policy=two_actions(row(0.6, 0.45)), values=row(0.0, 0.0))
    loss, metrics = jitted_loss(learned, batch, config)
    # Ratios to the proximal policy: 1.5, clipped to 1.2, and 0.9.
    policy_loss = -(0.8 * 1.2 * 2.0 + 1.25 * 0.9 * -1.0) / 2
    np.testing.assert_allclose(metrics["policy_loss"], policy_loss, rtol=1e-5)
    np.testing.assert_allclose(loss, policy_loss + 0.5 * 0.5 * (4.0 + 1.0) / 2, rtol=1e-5)
    np.testing.assert_allclose(metrics["rho"], (0.8 + 1.25) / 2, rtol=1e-6)
    np.testing.assert_allclose(metrics["clip_fraction"], 0.5)
    capped = jitted_targets(proximal, trajectory, dataclasses.replace(config, clip_pg_rho=1.0))
    np.testing.assert_allclose(capped.weights, row(0.8, 1.0), rtol=1e-6)


def test_vtrace_targets_stop_at_resets_and_bootstrap_from_truncations():
    # Three steps that are truncated, a reset, two that terminate, a reset, one of the next episode.
    ratios = column(0.5, 1.5, 0.8, 2.0, 0.7, 1.2, 0.6, 0.9)
    no = [False] * 9
    trajectory = make_trajectory(
        rewards=column(0, 1, 2, 3, 0, 4, 5, 0, 6),
        terminated=column(*no[:6], True, False, False, dtype=bool),
        truncated=column(*no[:3], True, *no[4:], dtype=bool),
        behaviour=two_actions(np.full((8, 1), np.float32(0.4))),
        action=np.zeros((8, 1), np.int32),
    )
    values = column(0.5, -0.2, 0.3, 0.8, 1.1, -0.4, 0.9, 0.2, 0.6)
    proximal = two_actions(np.append(0.4 * ratios, column(0.5), axis=0).astype(np.float32))
    config = PPOConfig(targets="vtrace", lambda_=1.0, discount=0.9)
    targets = jitted_targets(PolicyValue(policy=proximal, values=values), trajectory, config)
    returns = column(2.87958, 4.7324, 3.036, 0.8, 6.28, 5, 0.9, 5.906)
    np.testing.assert_allclose(targets.returns, returns, rtol=1e-5)
    weighted = column(2.37958, 4.9324, 2.736, 0, 5.18, 5.4, 0, 5.706)  # with the ratios up to 1
    expected = weighted / np.minimum(ratios, 1.0)
    np.testing.assert_allclose(targets.advantages, expected, rtol=1e-5)
    np.testing.assert_allclose(np.exp(targets.log_probs), np.full((8, 1), 0.4), rtol=1e-6)
    assert targets.weights is None


def make_case(seed):
    """Return random logits of three policies, values, and a stream with ends of both kinds."""
    rng = np.random.default_rng(seed)
    stream = random_env_steps(seed, LENGTH, NUM_ENVS, OBSERVATION)
    logits = {
        name: rng.normal(size=(LENGTH + 1, NUM_ENVS, NUM_ACTIONS)).astype(np.float32)
        for name in ("behaviour", "proximal", "learned")
    }
    values, learned_values = rng.normal(size=(2, LENGTH + 1, NUM_ENVS)).astype(np.float32)
    action = rng.integers(NUM_ACTIONS, size=(LENGTH, NUM_ENVS)).astype(np.int32)
    config = PPOConfig(
        discount=0.9,
        lambda_=0.8,
        clip=0.3,
        entropy_cost=0.02,
        clip_rho=0.9,
        clip_c=0.7,
        **LAGGING[seed % 3],
        **({} if seed % 2 else {"clip_pg_rho": 1.1, "value_clip": 0.1}),
    )
    return stream, logits, values, learned_values, action, config


def loss_by_hand(stream, logits, values, learned_values, action, config):
    """Return the loss by loops in float64, from the papers' equations."""
    log_probs = {}
    for name, each in logits.items():
        each = each.astype(np.float64)
        log_probs[name] = each - np.log(np.exp(each).sum(axis=-1, keepdims=True))
    values, learned_values = values.astype(np.float64), learned_values.astype(np.float64)
    entries = []
    for b in range(NUM_ENVS):
        v_next, gae_next = values[-1, b], 0.0
        for t in reversed(range(LENGTH)):
            if stream.terminated[t, b] or stream.truncated[t, b]:  # its action was ignored
                v_next, gae_next = values[t, b], 0.0
                continue
            taken = {name: each[t, b, action[t, b]] for name, each in log_probs.items()}
            ratio = np.exp(taken["proximal"] - taken["behaviour"])
            gamma = 0.0 if stream.terminated[t + 1, b] else config.discount
            reward, value, next_value = stream.reward[t + 1, b], values[t, b], values[t + 1, b]
            td_error = reward + gamma * next_value - value
            if config.targets == "vtrace":
                advantage = td_error + gamma * config.lambda_ * (v_next - next_value)
                trace = config.lambda_ * min(ratio, config.clip_c)
                target = value + min(ratio, config.clip_rho) * td_error
                target += gamma * trace * (v_next - next_value)
                v_next = target
            else:
                advantage = td_error + gamma * config.lambda_ * gae_next
                target, gae_next = value + advantage, advantage
            error = (learned_values[t, b] - target) ** 2
            if config.value_clip is not None:
                moved = np.clip(learned_values[t, b] - value, -config.value_clip, config.value_clip)
                error = max(error, (value + moved - target) ** 2)
            centre, weight = "behaviour", 1.0
            if config.objective == "decoupled":
                centre, weight = "proximal", min(ratio, config.clip_pg_rho or np.inf)
            entropy = -np.sum(np.exp(log_probs["learned"][t, b]) * log_probs["learned"][t, b])
            change = np.exp(taken["learned"] - taken[centre])
            entries.append((advantage, change, weight, error, entropy))
    advantages, changes, weights, errors, entropies = map(np.array, zip(*entries, strict=True))
    advantages = (advantages - advantages.mean()) / advantages.std()
    clipped = np.clip(changes, 1.0 - config.clip, 1.0 + config.clip)
    gains = weights * np.minimum(changes * advantages, clipped * advantages)
    loss = -gains + config.baseline_cost * 0.5 * errors - config.entropy_cost * entropies
    return loss.mean()


@pytest.mark.parametrize("setting", range(3))
def test_the_loss_is_that_of_loops_over_the_papers_equations(setting):
    num_ends = np.zeros(2, int)
    for seed in range(setting, 3 * 200, 3):
        case = stream, logits, values, learned_values, action, config = make_case(seed)
        trajectory = Trajectory(
            env_steps=stream,
            action=action,
            extras=ActorCriticExtras(policy=Categorical(logits=logits["behaviour"][:-1])),
        )
        proximal = PolicyValue(policy=Categorical(logits=logits["proximal"]), values=values)
        targets = jitted_targets(proximal, trajectory, config)
        assert isinstance(targets, Targets)
        learned = PolicyValue(policy=Categorical(logits=logits["learned"]), values=learned_values)
        batch = dataclasses.replace(trajectory, extras=targets)
        loss, _ = jitted_loss(learned, batch, config)
        np.testing.assert_allclose(loss, loss_by_hand(*case), rtol=2e-4, atol=2e-5)
        num_ends += [np.sum(stream.terminated[:-1]), np.sum(stream.truncated[:-1])]
    assert min(num_ends) > 1000


@functools.cache
def make_agent(**changes):
    return PPO(PPOConfig(hidden_sizes=(8, 8), num_epochs=2, **changes), make_run_spec())


@pytest.mark.parametrize("lstm_size", [None, pytest.param(6, marks=pytest.mark.slow)])
@pytest.mark.parametrize("changes", LAGGING)
def test_without_a_lag_all_losses_are_those_of_plain_ppo(changes, lstm_size):
    agents = make_agent(lstm_size=lstm_size), make_agent(lstm_size=lstm_size, **changes)
    networks, later = make_networks(agents[0]), make_networks(agents[0], seed=1)
    initial, trajectory = act_along_stream(agents[0], networks, make_stream())
    results = []
    for agent in agents:
        experience = add_trajectory(agent, networks, initial, trajectory)
        loss = jitted_gradient(agent.loss)
        (value, (_, metrics)), grads = loss(later, experience, jax.random.key(0), Clock.at(0))
        results.append((value, grads, {name: metrics[name] for name in ("kl", "policy_loss")}))
    chex.assert_trees_all_close(*results, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("changes", LAGGING)
def test_with_a_lag_the_loss_is_another_and_ignores_invalid_rows(changes):
    agent, plain = make_agent(**changes), make_agent()
    behaviour, networks = make_networks(agent), make_networks(agent, seed=1)
    initial, trajectory = act_along_stream(agent, behaviour, make_stream())
    policy = trajectory.extras.policy
    other = jnp.where(trajectory.valid[..., None], policy.logits, policy.logits[..., ::-1])
    changed = dataclasses.replace(
        trajectory,
        action=jnp.where(trajectory.valid, trajectory.action, (trajectory.action + 1) % 3),
        extras=ActorCriticExtras(policy=Categorical(logits=other)),
    )
    losses = []
    for each, rows in ((agent, trajectory), (agent, changed), (plain, trajectory)):
        experience = add_trajectory(each, networks, initial, rows)
        loss = jitted(each.loss)
        losses.append(loss(networks, experience, jax.random.key(0), Clock.at(0))[0])
    np.testing.assert_array_equal(losses[0], losses[1])
    assert abs(losses[0] - losses[2]) > 1e-3


@functools.partial(jax.jit, static_argnames="config")
def loss_and_gradient(logits, values, batch, config):
    def loss(logits):
        learned = PolicyValue(policy=Categorical(logits=logits), values=values)
        return ppo_loss(learned, batch, config)

    return jax.value_and_grad(loss, has_aux=True)(logits)


@pytest.mark.parametrize("clip", [None, 2.0])
@pytest.mark.parametrize("advantage", [-1.0, 0.0, 1.0])
@pytest.mark.parametrize("log_ratio", [-1e4, 30.0, 89.0, 1e4])
def test_policies_that_are_far_apart_have_a_finite_loss_and_gradient(log_ratio, advantage, clip):
    config = PPOConfig(objective="decoupled", clip_pg_rho=clip, normalize_advantages=False)

    def likelier(by):
        """Return policies in which action 0 is likelier than the other by a factor of e^by."""
        return Categorical(logits=jnp.asarray([[[by, 0.0]]] * 2, jnp.float32))

    trajectory = make_trajectory(
        rewards=np.array([[0.0], [advantage]], np.float32),
        terminated=np.array([[False], [True]]),
        truncated=np.zeros((2, 1), bool),
        behaviour=Categorical(logits=likelier(-log_ratio).logits[:1]),
        action=np.zeros((1, 1), np.int32),
    )
    values = jnp.zeros((2, 1))
    targets = jitted_targets(PolicyValue(policy=likelier(0.0), values=values), trajectory, config)
    log_weight = min(np.log(0.5) + np.logaddexp(0.0, log_ratio), np.log(clip) if clip else 20.0)
    np.testing.assert_allclose(targets.weights, np.exp(log_weight), rtol=1e-4)
    # π is as far from the policy that it should stay near.
    extras = dataclasses.replace(targets, log_probs=targets.log_probs - jnp.float32(log_ratio))
    batch = dataclasses.replace(trajectory, extras=extras)

    logits = likelier(0.0).logits
    (value, metrics), gradient = loss_and_gradient(logits, values, batch, config)
    leaves = [value, gradient, jnp.sum(jnp.square(gradient)), *metrics.values()]
    assert all(np.isfinite(leaf).all() for leaf in leaves)


@pytest.mark.parametrize("name", ["ExchangesPolicies", "ClipsWeightsFromBelow", "TakesNewValues"])
def test_the_loops_find_a_planted_fault(name):
    stream, logits, values, learned_values, action, _ = make_case(0)
    config = PPOConfig(discount=0.9, lambda_=0.8, clip=0.3, **LAGGING[2])
    trajectory = Trajectory(
        env_steps=stream,
        action=action,
        extras=ActorCriticExtras(policy=Categorical(logits=logits["behaviour"][:-1])),
    )
    proximal = PolicyValue(policy=Categorical(logits=logits["proximal"]), values=values)
    batch = dataclasses.replace(trajectory, extras=jitted_targets(proximal, trajectory, config))
    learned = PolicyValue(policy=Categorical(logits=logits["learned"]), values=learned_values)
    expected = loss_by_hand(stream, logits, values, learned_values, action, config)
    agent = getattr(faulty_ppo, name)(FaultyConfig(name=name, sound=config), make_run_spec())
    losses = [
        jax.jit(loss, static_argnames="config")(learned, batch, config)[0]
        for loss in (ppo_loss, agent.ppo_loss)
    ]
    np.testing.assert_allclose(losses[0], expected, rtol=2e-4)
    assert abs(losses[1] - expected) > 0.01
