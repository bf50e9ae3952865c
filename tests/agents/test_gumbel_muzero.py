"""Gumbel MuZero against a slow reference, hand-fed numbers and streams with ends of episodes."""

import dataclasses
import functools
import json
import sys
import types

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("mctx", reason="needs the extra search")

from sebulba.agent_check import validate_agent
from sebulba.config.agents import agent_factory
from sebulba.config.loading import load_config
from sebulba.errors import ConfigError
from sebulba.run import training
from sebulba.toolkit import replay
from sebulba.types import Clock, EnvStep, Trajectory
from sebulba_agents.gumbel_muzero import GumbelMuZero, Planned, num_reanalysed
from sebulba_agents.muzero_networks import scale_gradient, scale_to_unit
from sebulba_agents.planning import Plan
from sebulba_agents.replay_config import GumbelMuZeroConfig
from sebulba_agents.target_networks import TargetNetworks
from sebulba_agents.unroll_targets import UnrollTargets
from tests.compiled import jitted
from tests.splitting import step_split, step_whole
from tests.streams import random_env_steps
from tests.toys import one_actor_run_spec

LENGTH, NUM_ENVS, NUM_ACTIONS, K = 4, 4, 3, 2
CONFIG = GumbelMuZeroConfig(
    hidden_sizes=(8,),
    latent_size=8,
    model_sizes=(8,),
    num_simulations=4,
    unroll_length=K,
    n_step=2,
    num_bins=11,
    value_limit=20.0,
    batch_size=32,
    replay_capacity=NUM_ENVS * 32,
    min_replay_rows=40,
    replay_ratio=4.0,
    target_period=2,
)
RUN_SPEC = one_actor_run_spec(num_envs=NUM_ENVS, trajectory_length=LENGTH, num_actions=NUM_ACTIONS)


@functools.cache
def agent_and_networks(**changes):
    """Return an agent, and networks whose outputs differ from 0."""
    agent = GumbelMuZero(dataclasses.replace(CONFIG, **changes), RUN_SPEC)
    networks = jitted(agent.init_networks)(jax.random.key(0))
    return agent, TargetNetworks(
        online=noisy(networks.online, 1),
        target=None if networks.target is None else noisy(networks.target, 2),
    )


def noisy(params, seed):
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda x: x + jnp.asarray(0.3 * rng.normal(size=x.shape), jnp.float32), params
    )


def random_batch(size=32, seed=0):
    """Return observations, targets and weights; half of the targets are masked."""
    rng = np.random.default_rng(seed)

    def mask(rows):
        return jnp.asarray(rng.random((rows, size)) < 0.5)

    def normal(*shape):
        return jnp.asarray(rng.normal(size=shape), jnp.float32)

    targets = UnrollTargets(
        action=jnp.asarray(rng.integers(NUM_ACTIONS, size=(K, size)), jnp.int32),
        reward=normal(K, size),
        reward_mask=mask(K),
        value=5.0 * normal(K + 1, size),
        value_mask=mask(K + 1),
        policy=jnp.asarray(rng.dirichlet(np.ones(NUM_ACTIONS), (K + 1, size)), jnp.float32),
        policy_mask=mask(K + 1),
    )
    weights = jnp.asarray(rng.uniform(0.1, 1.0, size), jnp.float32)
    return normal(size, 3), targets, weights


def predictions(agent, params, observation, actions):
    """Return reward logits and predictions of every step, each as NumPy arrays `[n, ...]`."""
    model, rewards = agent.model, [None]
    advance, predict = jax.jit(model.advance), jax.jit(model.predict)
    latent = jax.jit(model.represent)(params, observation)
    predicted = [predict(params, latent)]
    for action in actions:
        latent, reward = advance(params, latent, action)
        rewards.append(np.asarray(reward))
        predicted.append(predict(params, latent))
    return rewards, jax.tree.map(np.asarray, predicted)


def slow_loss(agent, predicted, targets, weight, i):
    """Return the loss of sequence `i`, prediction by prediction."""

    def entropy(logits, probabilities):
        return -np.sum(probabilities * (logits - np.log(np.sum(np.exp(logits)))))

    model, total, (rewards, others) = agent.model, 0.0, predicted
    codes = [
        np.asarray(coder.encode(x))
        for coder, x in ((model.reward, targets.reward), (model.value, targets.value))
    ]
    for k in range(K + 1):
        share = 1.0 if k == 0 else 1.0 / K
        if k > 0 and targets.reward_mask[k - 1, i]:
            total += share * entropy(rewards[k][i], codes[0][k - 1, i])
        if targets.value_mask[k, i]:
            total += CONFIG.value_cost * share * entropy(others[k].value[i], codes[1][k, i])
        if targets.policy_mask[k, i]:
            total += share * entropy(others[k].policy[i], targets.policy[k, i])
    return weight * total


def test_loss_equals_the_slow_reference():
    agent, networks = agent_and_networks()
    observation, targets, weights = random_batch()
    loss, error, _ = jitted(agent.loss_of_batch)(networks.online, observation, targets, weights)
    predicted = predictions(agent, networks.online, observation, targets.action)
    targets, weights = jax.tree.map(np.asarray, (targets, weights))
    expected = [slow_loss(agent, predicted, targets, weights[i], i) for i in range(32)]
    np.testing.assert_allclose(loss, np.mean(expected), rtol=1e-4)
    value = agent.model.value.decode(jnp.asarray(predicted[1][0].value))
    np.testing.assert_allclose(error, np.abs(value - targets.value[0]), rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_one_and_two_learner_devices_take_the_same_step():
    agent, networks = agent_and_networks()
    opt_state = jitted(agent.init_opt_state)(networks)
    observation, targets, weights = random_batch()
    # One device's share weighs far less than the other's, and has fewer targets.
    weights = weights.at[:16].multiply(0.1)
    targets = dataclasses.replace(targets, value_mask=targets.value_mask.at[:, :16].set(False))
    batch = (observation, jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), targets), weights)

    def loss(networks, batch):
        observation, targets, weights = batch
        targets = jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), targets)
        return agent.loss_of_batch(networks.online, observation, targets, weights)[0]

    expected = step_whole(agent, loss, networks, opt_state, batch)
    got = step_split(agent, loss, networks, opt_state, batch, num_devices=2)
    # Adam divides by the gradients' size, where rounding counts.
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=2e-4), got[0], expected[0])
    np.testing.assert_allclose(got[2], expected[2], rtol=1e-5)


def test_gradients_are_scaled_and_values_are_not():
    value, gradient = jax.value_and_grad(lambda x: scale_gradient(x, 0.5) ** 2)(3.0)
    assert (value, gradient) == (9.0, 3.0)


def test_latent_states_are_scaled_and_constant_ones_do_not_blow_up_gradients():
    latent = jnp.array([[-3.0, 1.0, 5.0], [2.0, 2.0, 2.0]])
    np.testing.assert_allclose(scale_to_unit(latent), [[0.0, 0.5, 1.0], [0.0, 0.0, 0.0]])
    gradient = jax.jacobian(scale_to_unit)(latent)
    assert float(jnp.max(jnp.abs(gradient))) <= 10.0


@functools.cache
def stored_stream(**changes):
    """Return an agent, networks, the stream's rows and what a replay holds after it."""
    agent, networks = agent_and_networks(**changes)
    env_steps = random_env_steps(0, 6 * LENGTH, NUM_ENVS)
    rng = np.random.default_rng(1)
    planned = Planned(
        policy=rng.dirichlet(np.ones(NUM_ACTIONS), env_steps.reward.shape).astype(np.float32),
        value=rng.normal(size=env_steps.reward.shape).astype(np.float32),
    )
    experience = agent.init_experience(networks, NUM_ENVS)
    update, state = jitted(agent.update_experience), jax.random.key(0)
    for begin in range(0, 6 * LENGTH, LENGTH):
        trajectory = Trajectory(
            env_steps=jax.tree.map(lambda x: jnp.asarray(x[begin : begin + LENGTH + 1]), env_steps),  # noqa: B023
            action=jnp.zeros((LENGTH, NUM_ENVS), jnp.int32),
            extras=jax.tree.map(lambda x: jnp.asarray(x[begin : begin + LENGTH]), planned),  # noqa: B023
        )
        experience = update(networks, experience, state, state, trajectory, jnp.int32(0))
    return agent, networks, env_steps, planned, experience


def test_sequences_start_in_valid_rows_with_the_error_of_the_first_value():
    _, _, env_steps, planned, experience = stored_stream(priority_exponent=1.0)
    num_starts = 6 * LENGTH - K - CONFIG.n_step
    mass = np.asarray(experience.mass).T[:num_starts]
    done = env_steps.done[:num_starts]
    assert not mass[done].any() and (mass[~done] > 0.0).all()
    t, b = np.argwhere(~done & ~env_steps.done[1 : num_starts + 1])[0]
    gamma, value = CONFIG.discount, float(env_steps.reward[t + 1, b])
    value += gamma * float(env_steps.reward[t + 2, b])
    if not env_steps.terminated[t + 2, b]:
        value += gamma**2 * float(planned.value[t + 2, b])
    error = abs(value - float(planned.value[t, b]))
    np.testing.assert_allclose(mass[t, b], error, rtol=1e-4)


def test_values_are_of_the_rewards_that_the_model_learns():
    agent, _ = agent_and_networks()
    rng = np.random.default_rng(0)
    env_steps = random_env_steps(0, K + CONFIG.n_step, NUM_ENVS)
    reward = rng.choice([-100.0, 3.0, 100.0], env_steps.reward.shape).astype(np.float32)
    planned = Planned(
        policy=jnp.ones((*reward.shape, NUM_ACTIONS)) / NUM_ACTIONS, value=jnp.zeros(reward.shape)
    )

    def targets_of(reward):
        rows = types.SimpleNamespace(
            env_step=dataclasses.replace(env_steps, reward=jnp.asarray(reward)),
            action=jnp.zeros(reward.shape, jnp.int32),
        )
        return agent._targets(jax.random.key(0), rows, planned)

    limit = CONFIG.reward_limit
    got, expected = targets_of(reward), targets_of(np.clip(reward, -limit, limit))
    chex.assert_trees_all_equal(got, expected)
    assert np.abs(got.value).max() <= CONFIG.n_step * limit


def test_a_rarely_drawn_sequence_does_not_take_the_weight_of_the_others():
    agent, _ = agent_and_networks(priority_exponent=1.0)
    sample = types.SimpleNamespace(
        probability=jnp.array([0.25, 0.25, 0.25, 0.001]), num_sequences=jnp.int32(4)
    )
    weights = agent._weights(sample, Clock.at())
    np.testing.assert_allclose(weights, [1.0, 1.0, 1.0, 250.0], rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("with_networks", ["newest", "target"])
def test_reanalysis_replaces_the_targets_of_a_share_of_the_batch(with_networks):
    agent, networks, *_, experience = stored_stream(
        reanalyse_fraction=0.25, reanalyse_with=with_networks, max_considered_actions=3
    )
    sample = replay.sample(agent._replay_spec, experience, jax.random.key(0), 32)
    rows = sample.sequences.rows
    planned = jitted(agent._reanalyse)(networks, jax.random.key(1), rows)
    for got, stored in zip(jax.tree.leaves(planned), jax.tree.leaves(rows.extras), strict=True):
        np.testing.assert_array_equal(got[:, 8:], stored[:, 8:])
        assert not np.isclose(got[:, :8], stored[:, :8]).all()
    params = networks.online if with_networks == "newest" else networks.target
    root = agent.model.root(params, rows.env_step.observation[0, :8])
    # All actions are visited, so the search keeps the network's preferences where values agree.
    log_ratio = np.log(planned.policy[0, :8]) - np.asarray(jax.nn.log_softmax(root.policy))
    assert np.ptp(log_ratio, axis=-1).max() < 0.1 * (50 + CONFIG.num_simulations) + 1e-3
    assert (networks.target is None) == (with_networks == "newest")


@pytest.mark.parametrize("num_devices", [pytest.param(2, marks=pytest.mark.slow), 4])
def test_every_number_of_learner_devices_reanalyses_the_same_sequences(num_devices, monkeypatch):
    # Of the whole batch, the first 8 sequences get new targets; of a device's, its first ones.
    def plan_without_noise(self, params, key, env_step, *, gumbel_scale=1.0):
        root = self.model.root(params, env_step.observation)
        policy = jax.nn.softmax(3.0 * root.policy)
        return Plan(action=jnp.argmax(policy, axis=-1), policy=policy, value=root.value + 1.0)

    monkeypatch.setattr(GumbelMuZero, "_plan", plan_without_noise)
    env_steps = random_env_steps(0, K + CONFIG.n_step, 32, done_probability=0.0)
    rng = np.random.default_rng(1)
    shape = env_steps.reward.shape
    extras = Planned(
        policy=rng.dirichlet(np.ones(NUM_ACTIONS), shape).astype(np.float32),
        value=rng.normal(size=shape).astype(np.float32),
    )
    action = rng.integers(NUM_ACTIONS, size=shape).astype(np.int32)
    rows = replay.Row(env_step=env_steps, action=action, extras=extras)
    batch = jax.tree.map(lambda x: jnp.moveaxis(jnp.asarray(x), 1, 0), rows)
    _, networks = agent_and_networks(reanalyse_fraction=0.25)

    def step(num_learners, take_step, order, **more):
        run_spec = dataclasses.replace(RUN_SPEC, num_learner_devices=num_learners)
        agent = GumbelMuZero(dataclasses.replace(CONFIG, reanalyse_fraction=0.25), run_spec)

        def loss(networks, batch):
            rows = jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), batch)
            planned = agent._reanalyse(networks, jax.random.key(0), rows)
            targets = agent._targets(jax.random.key(0), rows, planned)
            first, weights = rows.env_step.observation[0], jnp.ones(len(rows.action[0]))
            return agent.loss_of_batch(networks.online, first, targets, weights)[0]

        opt_state = jitted(agent.init_opt_state)(networks)
        own = jax.tree.map(lambda x: x[order], batch)
        return take_step(agent, loss, networks, opt_state, own, **more)

    expected = step(1, step_whole, np.arange(32))
    parts = np.split(np.arange(8), num_devices), np.split(np.arange(8, 32), num_devices)
    order = np.concatenate([part for pair in zip(*parts, strict=True) for part in pair])
    got = step(num_devices, step_split, order, num_devices=num_devices)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=2e-4), got[0], expected[0])
    np.testing.assert_allclose(got[2], expected[2], rtol=1e-5)


@pytest.mark.parametrize(
    ("num_devices", "total"), [(1, 6), (2, 6), (3, 6), (4, None), (8, None), (16, None)]
)
def test_a_reanalysed_share_that_devices_cannot_divide_is_refused(num_devices, total):
    config = dataclasses.replace(CONFIG, batch_size=48, reanalyse_fraction=0.12)
    run_spec = dataclasses.replace(RUN_SPEC, num_learner_devices=num_devices)
    if total is not None:
        assert num_reanalysed(config, run_spec) * num_devices == total
        return
    message = rf"agent.reanalyse_fraction: .*agent.batch_size .* {num_devices} learner devices"
    with pytest.raises(ConfigError, match=message):
        num_reanalysed(config, run_spec)


@pytest.mark.slow
def test_acting_is_legal_and_without_noise_if_greedy():
    mask = jax.ShapeDtypeStruct((NUM_ACTIONS,), bool)
    environment = dataclasses.replace(RUN_SPEC.environment, action_mask=mask)
    run_spec = dataclasses.replace(RUN_SPEC, environment=environment)
    agent, (_, networks) = GumbelMuZero(CONFIG, run_spec), agent_and_networks()
    validate_agent(agent, run_spec)
    rng = np.random.default_rng(0)
    legal = rng.random((64, NUM_ACTIONS)) < 0.5
    legal[:, 0] |= ~legal.any(axis=-1)
    flags = jnp.zeros(64, bool)
    env_step = EnvStep(
        observation=jnp.asarray(rng.normal(size=(64, 3)), jnp.float32),
        reward=jnp.zeros(64),
        terminated=flags,
        truncated=flags,
        is_first=flags,
        action_mask=jnp.asarray(legal),
    )
    act = jitted(agent.act, static_argnames="greedy")
    actions = {}
    for greedy in (True, False):
        for seed in (0, 1):
            state = jax.random.key(seed)
            action, extras, _ = act(networks.online, state, env_step, greedy=greedy)
            assert np.take_along_axis(legal, np.asarray(action)[:, None], axis=-1).all()
            assert not np.asarray(extras.policy)[~legal].any()
            actions[greedy, seed] = np.asarray(action)
    np.testing.assert_array_equal(actions[True, 0], actions[True, 1])
    assert (actions[False, 0] != actions[False, 1]).any()


@pytest.mark.slow
def test_absorbing_rows_teach_values_and_rewards_of_zero():
    """An episode of one step pays 1; the model learns that nothing follows, whatever is done."""
    agent, networks = agent_and_networks(learning_rate=1e-2)
    observation = jnp.tile(jnp.array([[1.0, 0.0, -1.0]]), (32, 1))
    is_first_row = jnp.arange(K + 1)[:, None] == 0
    optimize = jitted(agent.optimize)
    opt_state = agent.init_opt_state(networks)
    experience = agent.init_experience(networks, NUM_ENVS)
    every, weights = jnp.ones((K + 1, 32), bool), jnp.ones(32)
    grad = jax.jit(jax.grad(lambda n, t: agent.loss_of_batch(n.online, observation, t, weights)[0]))
    for step in range(300):
        action = jax.random.randint(jax.random.key(step), (K, 32), 0, NUM_ACTIONS)
        targets = UnrollTargets(
            action=action,
            reward=jnp.zeros((K, 32)).at[0].set(1.0),
            reward_mask=every[1:],
            value=jnp.where(is_first_row & every, 1.0, 0.0),
            value_mask=every,
            policy=jnp.full((K + 1, 32, NUM_ACTIONS), 1 / NUM_ACTIONS),
            policy_mask=is_first_row & every,
        )
        grads = grad(networks, targets)
        networks, opt_state = optimize(networks, opt_state, grads, experience, Clock.at(step))
    root = agent.model.root(networks.online, observation[:1])
    after = agent.model.step(networks.online, root.latent, jnp.array([1]))
    later = agent.model.step(networks.online, after.latent, jnp.array([0]))
    got = [float(x[0]) for x in (root.value, after.reward, after.value, later.reward, later.value)]
    np.testing.assert_allclose(got, [1.0, 1.0, 0.0, 0.0, 0.0], atol=0.1)


def test_without_mctx_the_error_names_the_extra(monkeypatch):
    for name in ("mctx", "sebulba_agents.gumbel_muzero", "sebulba_agents.planning"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "mctx", None)
    with pytest.raises(ConfigError, match=r"pip install 'sebulba\[search\]'"):
        agent_factory("gumbel_muzero")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_bins": 10}, "agent.num_bins: expected an odd number"),
        ({"reanalyse_fraction": 0.01}, r"multiple of the 1 learner .* 0 sequences. Set 0.03125$"),
        ({"network": "resnet"}, "agent.network: resnet expects one image"),
    ],
)
def test_settings_that_do_not_fit_name_the_key(changes, message):
    with pytest.raises(ConfigError, match=message):
        GumbelMuZero(dataclasses.replace(CONFIG, **changes), RUN_SPEC)


@pytest.mark.parametrize(("size", "latent_size"), [(10, 10), (84, 6)])
def test_latent_images_keep_the_cells_of_minatar(size, latent_size):
    image = jax.ShapeDtypeStruct((size, size, 4), jnp.uint8)
    environment = dataclasses.replace(RUN_SPEC.environment, observation=image)
    run_spec = dataclasses.replace(RUN_SPEC, environment=environment)
    config = dataclasses.replace(CONFIG, network="resnet", channels=4, num_blocks=0)
    agent = GumbelMuZero(config, run_spec)
    params = jax.eval_shape(agent.init_networks, jax.random.key(0)).online
    observation = jax.ShapeDtypeStruct((2, *image.shape), image.dtype)
    latent = jax.eval_shape(agent.model.represent, params, observation)
    assert latent.shape == (2, latent_size, latent_size, 4)


@pytest.mark.slow
def test_gradients_of_blank_images_are_finite():
    image = jax.ShapeDtypeStruct((4, 20, 20), jnp.uint8)
    environment = dataclasses.replace(RUN_SPEC.environment, observation=image)
    run_spec = dataclasses.replace(RUN_SPEC, environment=environment)
    config = dataclasses.replace(CONFIG, network="resnet", channels=4, unroll_length=5)
    agent = GumbelMuZero(config, run_spec)
    params = jitted(agent.init_networks)(jax.random.key(0)).online
    ones, blank = jnp.ones((6, 2)), jnp.zeros((2, 4, 20, 20), jnp.uint8)
    targets = UnrollTargets(
        action=jnp.zeros((5, 2), jnp.int32),
        reward=ones[1:],
        reward_mask=ones[1:] > 0.0,
        value=ones,
        value_mask=ones > 0.0,
        policy=jnp.full((6, 2, NUM_ACTIONS), 1 / NUM_ACTIONS).at[:, :, 0].add(0.5),
        policy_mask=ones > 0.0,
    )
    grad = jax.jit(jax.grad(lambda p: agent.loss_of_batch(p, blank, targets, ones[0])[0]))
    for each in (params, noisy(params, 0)):
        grads = grad(each)
        norm = jnp.sqrt(sum(jnp.sum(jnp.square(x)) for x in jax.tree.leaves(grads)))
        assert float(norm) < 1e4


@pytest.mark.slow
def test_pong_starts_reanalyses_and_resumes(tmp_path):
    flags = ["--actor.num-envs", "2", "--actor.trajectory-length", "4", "--devices.actor", "[0]"]
    flags += [
        "--actor.threads-per-device",
        "1",
        "--devices.learner",
        "[0]",
        "--agent.channels",
        "4",
    ]
    flags += ["--agent.num-blocks", "1", "--agent.num-simulations", "2", "--agent.batch-size", "4"]
    flags += ["--agent.replay-capacity", "400", "--agent.min-replay-rows", "60"]
    flags += ["--agent.frame-stack", "4", "--run.log-interval-env-steps", "20"]
    flags += ["--run-dir", str(tmp_path / "run")]

    def train(*more):
        config = load_config("configs/gumbel_muzero_pong.yaml", [*flags, *more])
        assert training.train_to_exit_code(config) == 0
        return json.loads((tmp_path / "run" / "summary.json").read_text())

    first = train("--run.total-env-steps", "120")
    second = train("--run.total-env-steps", "200", "--resume", "latest")
    assert second["updates"] > first["updates"] > 0
    rows = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert np.isfinite(json.loads(rows[-1])["policy_loss"])
