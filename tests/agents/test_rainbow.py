"""Rainbow against hand-fed numbers and slow references, and against DDQN with everything off."""

import dataclasses
import functools
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sebulba.agent_check import validate_agent, validate_learning
from sebulba.errors import ConfigError
from sebulba.toolkit.schedules import Schedule
from sebulba.types import Clock, EnvStep, Trajectory
from sebulba_agents.ddqn import DDQN
from sebulba_agents.rainbow import make_rainbow
from sebulba_agents.replay_config import DDQNConfig, RainbowConfig
from sebulba_agents.target_networks import TargetNetworks
from sebulba_agents.value_distributions import CategoricalReturns
from tests.agents.test_ddqn import batch_ends, filled, random_batch
from tests.compiled import jitted
from tests.splitting import step_split, step_whole
from tests.streams import random_env_steps
from tests.toys import one_actor_run_spec

LENGTH, NUM_ENVS, NUM_ACTIONS, NUM_ATOMS = 4, 8, 3, 7
COMMON = dict(
    hidden_sizes=(8,),
    batch_size=32,
    replay_capacity=NUM_ENVS * 16,
    min_replay_rows=40,
    replay_ratio=4.0,
    target_period=2,
)
CONFIG = RainbowConfig(**COMMON, dueling_size=4, num_atoms=NUM_ATOMS, value_min=-3.0, value_max=6.0)
OFF = dict(dueling_size=None, n_step=1, priority_exponent=0.0)
RUN_SPEC = one_actor_run_spec(num_envs=NUM_ENVS, trajectory_length=LENGTH, num_actions=NUM_ACTIONS)
KEY = jax.random.key(5)


@functools.cache
def agent_and_networks(**changes):
    """Return an agent, and networks whose target differs from the online one."""
    agent = make_rainbow(dataclasses.replace(CONFIG, **changes), RUN_SPEC)
    online, target = (jitted(agent.init_networks)(jax.random.key(seed)).online for seed in (0, 1))
    # Far enough from each other for greedy actions that differ.
    online, target = (jax.tree.map(lambda x: 3.0 * x, each) for each in (online, target))
    return agent, TargetNetworks(online=online, target=target)


def softmax(logits):
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def slow_projection(returns, probabilities, low, high, atoms):
    """Algorithm 1 of Bellemare et al. 2017, with the mass of a return on an atom."""
    spacing = (high - low) / (atoms - 1)
    projected = np.zeros(atoms)
    for z, p in zip(returns, probabilities, strict=True):
        b = (min(max(z, low), high) - low) / spacing
        lower, upper = math.floor(b), math.ceil(b)
        if lower == upper:
            projected[lower] += p
        else:
            projected[lower] += p * (upper - b)
            projected[upper] += p * (b - lower)
    return projected


def outputs_of(agent, networks, batch):
    """Return outputs here and there of the online network, and there of the target, as float64."""

    def outputs(params, observation):
        return np.asarray(jitted(agent.network.apply)(params, observation), np.float64)

    here, there = (outputs(networks.online, x) for x in batch_ends(batch))
    return here, there, outputs(networks.target, batch.next_observation)


def test_with_everything_off_it_computes_what_ddqn_does():
    epsilon = Schedule(schedule="linear", start=1.0, end=0.1, env_steps=160)
    changes = {**COMMON, **OFF, "epsilon": epsilon}
    settings = {"learning_rate": 5e-4, "adam_epsilon": 1e-5, "importance_exponent": 0.4}
    agents = (
        DDQN(DDQNConfig(**changes, **settings), RUN_SPEC),
        make_rainbow(
            RainbowConfig(**changes, **settings, distribution=None, noisy_sigma=None), RUN_SPEC
        ),
    )
    results = []
    for agent in agents:
        networks = jitted(agent.init_networks)(jax.random.key(0))
        experience = filled(agent, networks)
        step = jax.jit(jax.value_and_grad(agent.loss, has_aux=True))
        (loss, (experience, metrics)), grads = step(networks, experience, KEY, Clock.at())
        opt_state = jitted(agent.init_opt_state)(networks)
        updated = jitted(agent.optimize)(networks, opt_state, grads, experience, Clock.at(1))
        state = agent.init_actor_state(networks.online, NUM_ENVS, jax.random.key(0), 0)
        env_step = jax.tree.map(lambda x: x[0], random_env_steps(0, 1, NUM_ENVS))
        act = jax.jit(functools.partial(agent.act, greedy=False))
        actions = []
        for _ in range(10):
            action, _, state = act(updated[0].online, state, env_step)
            actions.append(action)
        state = dataclasses.replace(state, key=jax.random.key_data(state.key))
        results.append((loss, metrics, grads, updated, experience.mass, actions, state))
        updates = [agent.num_updates_per_cycle(cycle) for cycle in range(20)]
        results[-1] += (updates,)
    chex.assert_trees_all_equal(*results)


def test_projection_golden():
    returns = CategoricalReturns(least=-1.0, greatest=1.0, num_atoms=5)
    np.testing.assert_allclose(returns.support, [-1.0, -0.5, 0.0, 0.5, 1.0])
    points = jnp.asarray([[0.0, 0.125, 0.5, 3.0], [-7.0, -0.75, 0.9, 1.0]])
    probabilities = jnp.asarray([[0.1, 0.4, 0.2, 0.3], [0.25, 0.25, 0.25, 0.25]])
    expected = [[0.0, 0.0, 0.4, 0.3, 0.3], [0.375, 0.125, 0.0, 0.05, 0.45]]
    np.testing.assert_allclose(returns.project(points, probabilities), expected, atol=1e-6)


def test_projection_has_the_numbers_that_rlax_tests():
    returns = CategoricalReturns(least=-1.0, greatest=0.5, num_atoms=4)
    old = np.arange(-1.0, 1.0, 0.25)
    weights = np.where(np.arange(8) % 2 == 0, 0.0, old)
    got = returns.project(*(jnp.asarray(x[None], jnp.float32) for x in (old, weights)))
    np.testing.assert_allclose(got[0], [-0.375, -0.5, 0.0, 0.875], atol=1e-6)


def test_categorical_loss_has_the_numbers_that_rlax_tests():
    returns = CategoricalReturns(least=0.5, greatest=1.5, num_atoms=3)
    # Of rlax's CategoricalDoubleQLearningTest, after the choice of actions.
    taken = [[0, 9, 0], [9, 0, 9], [0, 9, 0], [9, 9, 0], [9, 0, 9]]
    following = [[0, 0, 9], [9, 9, 0], [9, 0, 9], [9, -9, 0], [9, -9, 0]]
    batch = dataclasses.replace(
        random_batch(5),
        reward=jnp.asarray([0.5, 0.0, 0.5, 0.8, -0.1]),
        discount=jnp.asarray([0.8, 1.0, 0.8, 0.0, 1.0]),
    )
    losses, priorities = returns.loss(*(jnp.float32(x) for x in (taken, following)), batch)
    expected = [8.998915, 5.192931, 5.400247, 0.693209, 0.693431]
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    np.testing.assert_array_equal(priorities, losses)


def test_projection_equals_the_slow_loop_and_keeps_the_mass():
    returns = CategoricalReturns(least=-3.0, greatest=6.0, num_atoms=NUM_ATOMS)
    rng = np.random.default_rng(0)
    points = rng.normal(scale=5.0, size=(200, 11)).astype(np.float32)
    points[:50] = np.round(points[:50])  # many on an atom
    probabilities = softmax(rng.normal(size=(200, 11)))
    got = jax.jit(returns.project)(points, jnp.asarray(probabilities, jnp.float32))
    for i in range(200):
        expected = slow_projection(points[i], probabilities[i], -3.0, 6.0, NUM_ATOMS)
        np.testing.assert_allclose(got[i], expected, atol=2e-5)
    np.testing.assert_allclose(np.sum(got, axis=-1), 1.0, rtol=1e-5)
    # Within the support, the mean is kept too.
    inside = np.clip(points, -3.0, 6.0)
    got = returns.project(jnp.asarray(inside), jnp.asarray(probabilities, jnp.float32))
    np.testing.assert_allclose(got @ returns.support, np.sum(inside * probabilities, -1), atol=1e-4)


@pytest.mark.parametrize("double", [True, False])
def test_categorical_loss_equals_the_slow_reference(double):
    agent, networks = agent_and_networks(double=double)
    batch = random_batch()
    loss, priority, _ = jitted(agent.loss_of_batch)(networks, batch)
    here, there, delayed = outputs_of(agent, networks, batch)
    support = np.linspace(-3.0, 6.0, NUM_ATOMS)
    chosen_by = there if double else delayed
    losses = []
    for i in range(32):
        action = np.argmax(softmax(chosen_by[i]) @ support)
        returns = float(batch.reward[i]) + float(batch.discount[i]) * support
        target = slow_projection(returns, softmax(delayed[i, action]), -3.0, 6.0, NUM_ATOMS)
        log_probs = np.log(softmax(here[i, int(batch.action[i])]))
        cross_entropy = -np.sum(target * log_probs)
        np.testing.assert_allclose(priority[i], cross_entropy, rtol=1e-4)
        losses.append(float(batch.weight[i]) * cross_entropy)
    np.testing.assert_allclose(loss, np.mean(losses), rtol=1e-4)
    other = softmax(delayed if double else there) @ support
    assert (np.argmax(softmax(chosen_by) @ support, -1) != np.argmax(other, -1)).any()


def test_quantile_loss_equals_the_slow_reference():
    agent, networks = agent_and_networks(distribution="quantile")
    batch = random_batch()
    loss, td_error, _ = jitted(agent.loss_of_batch)(networks, batch)
    here, there, delayed = outputs_of(agent, networks, batch)
    losses = []
    for i in range(32):
        following = delayed[i, np.argmax(there[i].mean(-1))]
        targets = float(batch.reward[i]) + float(batch.discount[i]) * following
        own = here[i, int(batch.action[i])]
        total = 0.0
        for k, quantile in enumerate(own):
            for target in targets:
                u = target - quantile
                huber = 0.5 * u**2 if abs(u) <= 1 else abs(u) - 0.5
                total += abs((k + 0.5) / NUM_ATOMS - (u < 0)) * huber / NUM_ATOMS
        np.testing.assert_allclose(td_error[i], targets.mean() - own.mean(), rtol=1e-3, atol=1e-4)
        losses.append(float(batch.weight[i]) * total)
    np.testing.assert_allclose(loss, np.mean(losses), rtol=1e-4)


@pytest.mark.parametrize("distribution", ["categorical", "quantile", None])
def test_an_illegal_next_action_has_no_part_in_the_target(distribution):
    agent, networks = agent_and_networks(distribution=distribution)
    batch = random_batch()
    values = agent._values(jitted(agent.network.apply)(networks.online, batch.next_observation))
    legal = np.ones((32, NUM_ACTIONS), bool)
    best = np.argmax(values, axis=-1)
    legal[np.arange(32), best] = False
    masked = dataclasses.replace(batch, next_action_mask=jnp.asarray(legal))
    seen = []

    def loss(q_tm1, q_t, batch):
        seen.append(q_t)
        return jnp.zeros(32), jnp.zeros(32)

    spy = DDQN(CONFIG, RUN_SPEC, network=agent.network, loss=loss, values=agent._values)
    spied = jax.jit(lambda *args: (spy.loss_of_batch(*args), seen[0])[1])
    greedy_q = spied(networks, masked)
    second = np.argmax(np.where(legal, values, -np.inf), axis=-1)
    delayed = jitted(agent.network.apply)(networks.target, batch.next_observation)
    np.testing.assert_allclose(greedy_q, delayed[np.arange(32), second], rtol=1e-6)


def test_dueling_atoms_are_sums_of_value_and_centred_advantage():
    agent, networks = agent_and_networks()
    params = jax.tree.map(np.asarray, networks.online["params"])
    observation = np.asarray(random_batch().observation)

    def dense(layer, x):
        return x @ layer["kernel"] + layer["bias"]

    features = np.tanh(dense(params["MLPTorso_0"]["Dense_0"], observation))
    # Output layers come first, since they are constructed first.
    of_value, of_hidden, of_advantage, of_other = (
        params["DuelingHead_0"][f"NoisyDense_{i}"] for i in range(4)
    )
    value = dense(of_value, np.maximum(dense(of_hidden, features), 0.0))
    advantage = dense(of_advantage, np.maximum(dense(of_other, features), 0.0))
    outputs = jitted(agent.network.apply)(networks.online, observation)
    for i in range(32):
        for atom in range(NUM_ATOMS):
            each = np.array([advantage[i, a * NUM_ATOMS + atom] for a in range(NUM_ACTIONS)])
            expected = value[i, atom] + each - np.mean(each)
            np.testing.assert_allclose(outputs[i, :, atom], expected, rtol=1e-3, atol=1e-4)


def stream_of(rewards, ends):
    """Return one environment's rows; "T" in `ends` is a termination, "t" a truncation."""
    rows = len(rewards)
    ends = np.array(list(ends))
    done = ends != "-"
    observation = np.random.default_rng(3).normal(size=(rows, 3)).astype(np.float32)
    return EnvStep(
        observation=observation[:, None],
        reward=np.array(rewards, np.float32)[:, None],
        terminated=(ends == "T")[:, None],
        truncated=(ends == "t")[:, None],
        is_first=np.concatenate([[True], done[:-1]])[:, None],
    )


@pytest.mark.parametrize("distribution", ["categorical", None])
def test_targets_of_n_steps_end_with_the_episode_and_bootstrap_at_a_truncation(distribution):
    n, discount = 3, 0.9
    config = dataclasses.replace(
        CONFIG,
        distribution=distribution,
        noisy_sigma=None,
        epsilon=0.1,
        n_step=n,
        discount=discount,
        batch_size=64,
        replay_capacity=32,
        min_replay_rows=8,
        priority_exponent=0.0,
    )
    spec = one_actor_run_spec(num_envs=1, trajectory_length=16, num_actions=NUM_ACTIONS)
    agent = make_rainbow(config, spec)
    online, target = (jitted(agent.init_networks)(jax.random.key(i)).online for i in (0, 1))
    networks = TargetNetworks(online=online, target=target)
    rewards = [9, 1, 2, 3, 9, 4, 5, 9, -1, -2, 0.5, 1, 1, 2, -1, 1, 2]
    rows = stream_of(rewards, "---t--T----------")
    action = np.random.default_rng(0).integers(NUM_ACTIONS, size=(16, 1)).astype(np.int32)
    state = agent.init_actor_state(online, 1, jax.random.key(0), 0)
    experience = jitted(agent.update_experience)(
        networks,
        agent.init_experience(networks, 1),
        state,
        state,
        Trajectory(
            env_steps=jax.tree.map(jnp.asarray, rows), action=jnp.asarray(action), extras=()
        ),
        jnp.int32(0),
    )
    batch = jitted(agent._replay.sample)(experience, jax.random.key(2), Clock.at())
    _, got, _ = jitted(agent.loss_of_batch)(networks, batch)
    support = np.linspace(-3.0, 6.0, NUM_ATOMS)

    here, beyond = (
        np.asarray(jitted(agent.network.apply)(params, rows.observation[:, 0]), np.float64)
        for params in (online, target)
    )
    seen = set()
    for i, t in enumerate(map(int, batch.ids.start)):
        seen.add(t)
        assert not (rows.terminated | rows.truncated)[t, 0], "the transition to a reset was drawn"
        total, weight, k = 0.0, 1.0, t
        while k < t + n and not (rows.terminated | rows.truncated)[k, 0]:
            k += 1
            total += weight * float(rows.reward[k, 0])
            weight *= discount
        if rows.terminated[k, 0]:
            weight = 0.0
        own, there, delayed = here[t], here[k], beyond[k]
        if distribution is None:
            expected = total + weight * delayed[np.argmax(there)] - own[action[t, 0]]
        else:
            following = softmax(delayed[np.argmax(softmax(there) @ support)])
            target_mass = slow_projection(total + weight * support, following, -3.0, 6.0, NUM_ATOMS)
            expected = -np.sum(target_mass * np.log(softmax(own[action[t, 0]])))
        np.testing.assert_allclose(got[i], expected, rtol=1e-4, atol=1e-4)
    assert seen >= {0, 1, 2, 4, 5}


def test_the_cross_entropies_are_the_new_priorities():
    # Without noise, a transition that is drawn twice has one cross entropy.
    agent, networks = agent_and_networks(noisy_sigma=None, epsilon=0.1)
    experience = filled(agent, networks)
    _, (updated, _) = jitted(agent.loss)(networks, experience, KEY, Clock.at())
    batch = jitted(agent._replay.sample)(experience, KEY, Clock.at())
    _, cross_entropy, _ = jitted(agent.loss_of_batch)(networks, batch)
    expected = (np.asarray(cross_entropy) + 1e-6) ** 0.5
    slot = batch.ids.start % 16
    np.testing.assert_allclose(updated.mass[batch.ids.stream, slot], expected, rtol=1e-4)


def test_target_network_and_next_observation_get_no_gradient():
    agent, networks = agent_and_networks()
    batch = random_batch()

    def loss(networks, next_observation):
        changed = dataclasses.replace(batch, next_observation=next_observation)
        return agent.loss_of_batch(networks, changed, KEY)[0]

    grads, of_next = jax.jit(jax.grad(loss, argnums=(0, 1)))(networks, batch.next_observation)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves((grads.target, of_next)))
    # σ too, since the key's noise is in the outputs.
    assert all(np.any(leaf) for leaf in jax.tree.leaves(grads.online))


def test_noise_of_learning_is_that_of_the_key_and_drawn_three_times():
    agent, networks = agent_and_networks()
    batch = random_batch()
    losses = [jitted(agent.loss_of_batch)(networks, batch, key)[0] for key in (KEY, KEY, None)]
    assert losses[0] == losses[1] != losses[2]
    other = jitted(agent.loss_of_batch)(networks, batch, jax.random.key(6))[0]
    assert other != losses[0]
    keys = []

    def outputs(params, observation, key):
        keys.append(jax.random.key_data(key))
        return agent.network.apply(params, observation)

    spy = make_rainbow(CONFIG, RUN_SPEC)
    spy._outputs = outputs
    keys = jax.jit(lambda *args: (spy.loss_of_batch(*args), keys)[1])(networks, batch, KEY)
    assert len(np.unique(np.stack(keys), axis=0)) == 3


def test_greedy_acting_has_no_noise_and_other_acting_has_that_of_its_environment():
    agent, networks = agent_and_networks()
    rows = jax.tree.map(lambda x: x[0], random_env_steps(0, 1, NUM_ENVS))
    same = dataclasses.replace(
        rows, observation=np.broadcast_to(rows.observation[:1], rows.observation.shape)
    )
    act = jax.jit(agent.act, static_argnames="greedy")
    state = agent.init_actor_state(networks.online, NUM_ENVS, jax.random.key(0), 0)
    values = agent._values(jitted(agent.network.apply)(networks.online, same.observation))
    actions = []
    for _ in range(100):
        action, _, state = act(networks.online, state, same, greedy=False)
        actions.append(np.asarray(action))
        greedy, _, _ = act(networks.online, state, same, greedy=True)
        np.testing.assert_array_equal(greedy, np.argmax(values, axis=-1))
    actions = np.stack(actions)
    assert len(np.unique(actions)) > 1
    assert len(np.unique(actions.T, axis=0)) == NUM_ENVS


def test_one_and_two_learner_devices_take_the_same_step():
    agent, networks = agent_and_networks()
    batch, opt_state = random_batch(), jitted(agent.init_opt_state)(networks)
    batch = dataclasses.replace(batch, weight=batch.weight.at[:16].multiply(0.1))

    def loss(networks, batch):
        return agent.loss_of_batch(networks, batch)[0]

    expected = step_whole(agent, loss, networks, opt_state, batch)
    got = step_split(agent, loss, networks, opt_state, batch, num_devices=2)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5), got, expected)


def test_the_agent_keeps_the_contract():
    agent, _ = agent_and_networks()
    validate_agent(agent, RUN_SPEC)
    validate_learning(agent, RUN_SPEC)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"noisy_sigma": None}, r"agent\.epsilon: expected exploration .*, got 0"),
        ({"value_min": 6.0}, r"agent\.value_min: expected .* got 6\.0 and 6\.0"),
    ],
)
def test_settings_that_cannot_work_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        make_rainbow(dataclasses.replace(CONFIG, **changes), RUN_SPEC)


def test_a_support_that_is_not_used_may_be_empty():
    make_rainbow(dataclasses.replace(CONFIG, distribution="quantile", value_min=6.0), RUN_SPEC)
