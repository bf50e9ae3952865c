"""Double DQN against hand-fed numbers and a slow reference."""

import dataclasses
import functools

import chex
import flax.linen as nn
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sebulba.agent_check import validate_agent, validate_learning
from sebulba.errors import ConfigError
from sebulba.toolkit.replay import SequenceIds
from sebulba.toolkit.replay.transitions import Transitions
from sebulba.toolkit.schedules import Schedule
from sebulba.types import Clock, Trajectory
from sebulba_agents.ddqn import DDQN
from sebulba_agents.replay_config import DDQNConfig
from sebulba_agents.target_networks import TargetNetworks
from tests.agents.target_periods import check_copies_to_the_target
from tests.compiled import jitted
from tests.splitting import step_split, step_whole
from tests.streams import random_env_steps
from tests.toys import one_actor_run_spec

LENGTH, NUM_ENVS, NUM_ACTIONS = 4, 8, 3
CONFIG = DDQNConfig(
    hidden_sizes=(8,),
    batch_size=32,
    replay_capacity=NUM_ENVS * 16,
    min_replay_rows=40,
    replay_ratio=4.0,
    target_period=2,
    priority_exponent=0.6,
    epsilon=Schedule(schedule="linear", start=1.0, end=0.1, env_steps=160),
)
RUN_SPEC = one_actor_run_spec(num_envs=NUM_ENVS, trajectory_length=LENGTH, num_actions=NUM_ACTIONS)


@functools.cache
def agent_and_networks(**changes):
    """Return an agent, and networks whose target differs from the online one."""
    agent = DDQN(dataclasses.replace(CONFIG, **changes), RUN_SPEC)
    online, target = (jitted(agent.init_networks)(jax.random.key(seed)).online for seed in (0, 1))
    return agent, TargetNetworks(online=online, target=target)


def random_batch(size=32, seed=0):
    rng = np.random.default_rng(seed)
    discount = np.where(rng.random(size) < 0.3, 0.0, 0.99)
    return Transitions(
        observation=jnp.asarray(rng.normal(size=(size, 3)), jnp.float32),
        action=jnp.asarray(rng.integers(NUM_ACTIONS, size=size), jnp.int32),
        reward=jnp.asarray(3.0 * rng.normal(size=size), jnp.float32),
        discount=jnp.asarray(discount, jnp.float32),
        next_observation=jnp.asarray(rng.normal(size=(size, 3)), jnp.float32),
        weight=jnp.asarray(rng.uniform(0.1, 1.0, size), jnp.float32),
        ids=SequenceIds(stream=jnp.zeros(size, jnp.int32), start=jnp.arange(size, dtype=jnp.int32)),
        num_transitions=jnp.full(size, 40, jnp.int32),
    )


def batch_ends(batch):
    return batch.observation, batch.next_observation


def filled(agent, networks, num_trajectories=6):
    update, experience = jitted(agent.update_experience), agent.init_experience(networks, NUM_ENVS)
    state = agent.init_actor_state(networks.online, NUM_ENVS, jax.random.key(0), 0)
    env_steps = random_env_steps(0, num_trajectories * LENGTH, NUM_ENVS)
    rng = np.random.default_rng(0)
    for begin in range(0, num_trajectories * LENGTH, LENGTH):
        trajectory = Trajectory(
            env_steps=jax.tree.map(lambda x: jnp.asarray(x[begin : begin + LENGTH + 1]), env_steps),  # noqa: B023
            action=jnp.asarray(rng.integers(NUM_ACTIONS, size=(LENGTH, NUM_ENVS)), jnp.int32),
            extras=(),
        )
        experience = update(networks, experience, state, state, trajectory, jnp.int32(0))
    return experience


@pytest.mark.parametrize("dueling_size", [None, 4])
def test_loss_equals_the_slow_reference(dueling_size):
    agent, networks = agent_and_networks(dueling_size=dueling_size)
    batch = random_batch()
    loss, td_error, _ = jitted(agent.loss_of_batch)(networks, batch)

    def q(params, observation):
        return np.asarray(jitted(agent.network.apply)(params, observation), np.float64)

    here, there = (q(networks.online, x) for x in batch_ends(batch))
    delayed = q(networks.target, batch.next_observation)
    losses = []
    for i in range(32):
        target = float(batch.reward[i])
        target += float(batch.discount[i]) * delayed[i, np.argmax(there[i])]
        delta = target - here[i, int(batch.action[i])]
        np.testing.assert_allclose(td_error[i], delta, rtol=1e-4, atol=1e-5)
        huber = 0.5 * delta**2 if abs(delta) <= 1 else abs(delta) - 0.5
        losses.append(float(batch.weight[i]) * huber)
    np.testing.assert_allclose(loss, np.mean(losses), rtol=1e-5)
    # The target network's own choice would have been another one.
    assert (there.argmax(-1) != delayed.argmax(-1)).any()


class PairNetwork(nn.Module):
    @nn.compact
    def __call__(self, observation):
        return nn.Dense(NUM_ACTIONS * 2)(observation).reshape(-1, NUM_ACTIONS, 2)


def test_a_network_and_a_loss_of_ones_own_get_outputs_of_the_greedy_values():
    seen = {}

    def loss(q_tm1, q_t, batch):
        seen.update(q_tm1=q_tm1, q_t=q_t)
        return q_tm1.sum(axis=-1), batch.reward

    agent = DDQN(CONFIG, RUN_SPEC, network=PairNetwork(), loss=loss, values=lambda x: x.max(-1))
    networks = [jitted(agent.init_networks)(jax.random.key(seed)) for seed in (0, 1)]
    networks = TargetNetworks(online=networks[0].online, target=networks[1].target)
    batch = random_batch()
    compute = jax.jit(lambda *args: (agent.loss_of_batch(*args), seen))
    (mean, td_error, _), seen = compute(networks, batch)
    here, there = (jitted(agent.network.apply)(networks.online, x) for x in batch_ends(batch))
    delayed = jitted(agent.network.apply)(networks.target, batch.next_observation)
    for i in range(32):
        greedy = np.argmax(np.max(there[i], axis=-1))
        np.testing.assert_allclose(seen["q_tm1"][i], here[i, int(batch.action[i])], rtol=1e-6)
        np.testing.assert_allclose(seen["q_t"][i], delayed[i, greedy], rtol=1e-6)
    np.testing.assert_allclose(mean, np.mean(batch.weight * seen["q_tm1"].sum(-1)), rtol=1e-5)
    np.testing.assert_array_equal(td_error, batch.reward)
    state = agent.init_actor_state(networks.online, NUM_ENVS, jax.random.key(0), 0)
    env_step = jax.tree.map(lambda x: x[0], random_env_steps(0, 1, NUM_ENVS))
    action, _, _ = jitted(agent.act, static_argnames="greedy")(
        networks.online, state, env_step, greedy=True
    )
    q = jitted(agent.network.apply)(networks.online, env_step.observation).max(axis=-1)
    np.testing.assert_array_equal(action, np.argmax(q, axis=-1))


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (
            {"loss": lambda q_tm1, q_t, batch: q_tm1},
            r"loss=.*a pair of arrays \[32\].* got f",
        ),
        (
            {"loss": lambda q_tm1, q_t, batch: (q_tm1, q_tm1)},
            r"loss=.* got 0: float32\[32,2\], 1: float32\[32,2\]; it was called with q_tm1",
        ),
        (
            {"loss": lambda q_tm1, q_t, batch: q_tm1 @ q_t},
            r"loss=\.\.\.\) raised TypeError: .* \(test_ddqn\.py:\d+: .*\); it was called",
        ),
        (
            {"values": lambda x: x},
            r"values=.*\[8, 3\] .* got float32\[8,3,2\]; it was called with out",
        ),
        (
            {"network": nn.Dense(5)},
            r"network=.*Dense to return an array \[8, 3, \.\.\.\], .*\[8,5\]",
        ),
    ],
)
def test_a_network_and_a_loss_of_ones_own_that_break_the_contract_are_refused(part, message):
    def loss(q_tm1, q_t, batch):
        return q_tm1.sum(axis=-1), batch.reward

    parts = {"network": PairNetwork(), "loss": loss, "values": lambda x: x.max(-1), **part}
    agent = DDQN(CONFIG, RUN_SPEC, **parts)
    with pytest.raises(ConfigError, match=rf"^DDQN\({message}"):
        validate_agent(agent, RUN_SPEC)
        validate_learning(agent, RUN_SPEC)


def test_target_network_and_next_observation_get_no_gradient():
    agent, networks = agent_and_networks()
    batch = random_batch()

    def loss(networks, next_observation):
        changed = dataclasses.replace(batch, next_observation=next_observation)
        return agent.loss_of_batch(networks, changed)[0]

    grads, _ = jax.jit(jax.grad(loss, argnums=(0, 1)))(networks, batch.next_observation)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(grads.target))
    assert all(np.any(leaf) for leaf in jax.tree.leaves(grads.online))


def test_gradient_of_a_large_error_is_that_of_one():
    agent, networks = agent_and_networks()
    batch = dataclasses.replace(random_batch(1), discount=jnp.zeros(1), weight=jnp.ones(1))

    def loss(networks, reward):
        return agent.loss_of_batch(networks, dataclasses.replace(batch, reward=reward[None]))[0]

    grad = jax.jit(jax.grad(loss))
    grads = [grad(networks, jnp.float32(reward)).online for reward in (100.0, 1000.0)]
    chex.assert_trees_all_equal(*grads)


def test_one_and_two_learner_devices_take_the_same_step():
    agent, networks = agent_and_networks()
    batch, opt_state = random_batch(), jitted(agent.init_opt_state)(networks)
    # One device's share weighs far less than the other's.
    batch = dataclasses.replace(batch, weight=batch.weight.at[:16].multiply(0.1))

    def loss(networks, batch):
        return agent.loss_of_batch(networks, batch)[0]

    expected = step_whole(agent, loss, networks, opt_state, batch)
    got = step_split(agent, loss, networks, opt_state, batch, num_devices=2)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5), got, expected)
    assert float(expected[2]) > 0.0


def test_loss_writes_the_new_priorities_of_what_it_sampled():
    agent, networks = agent_and_networks()
    experience = filled(agent, networks)
    key = jax.random.key(0)
    _, (updated, _) = jitted(agent.loss)(networks, experience, key, Clock.at())
    batch = jitted(agent._replay.sample)(experience, key, Clock.at())
    _, td_error, _ = jitted(agent.loss_of_batch)(networks, batch)
    slot = batch.ids.start % 16
    expected = (np.abs(td_error) + 1e-6) ** 0.6
    np.testing.assert_allclose(updated.mass[batch.ids.stream, slot], expected, rtol=1e-4)
    drawn = np.zeros((NUM_ENVS, 16), bool)
    drawn[np.asarray(batch.ids.stream), np.asarray(slot)] = True
    np.testing.assert_array_equal(updated.mass[~drawn], experience.mass[~drawn])


def test_act_takes_the_greatest_q_and_explores_by_the_schedule():
    agent, networks = agent_and_networks()
    state = agent.init_actor_state(networks.online, NUM_ENVS, jax.random.key(0), 0)
    env_step = jax.tree.map(lambda x: x[0], random_env_steps(0, 1, NUM_ENVS))
    going_on = dataclasses.replace(
        env_step, truncated=np.zeros(8, bool), terminated=np.zeros(8, bool)
    )
    greedy, _, _ = jitted(agent.act, static_argnames="greedy")(
        networks.online, state, going_on, greedy=True
    )
    q = jitted(agent.network.apply)(networks.online, going_on.observation)
    np.testing.assert_array_equal(greedy, np.argmax(q, axis=-1))
    act = jax.jit(functools.partial(agent.act, greedy=False))
    # 8 environments of 160 env steps of decay: 20 each.
    np.testing.assert_allclose(jitted(agent.exploration.epsilon)(state), 1.0)
    differs = []
    for _ in range(420):
        action, extras, state = act(networks.online, state, going_on)
        differs.append(np.mean(np.asarray(action) != greedy))
        assert extras == ()
        if len(differs) == 10:
            np.testing.assert_allclose(jitted(agent.exploration.epsilon)(state), 0.55, rtol=1e-6)
    np.testing.assert_allclose(jitted(agent.exploration.epsilon)(state), 0.1, rtol=1e-6)
    # A random action is the greedy one once in three.
    np.testing.assert_allclose(np.mean(differs[20:]), 0.1 * 2 / 3, atol=0.02)
    np.testing.assert_allclose(np.mean(differs[:20]), 0.55 * 2 / 3, atol=0.12)


def test_act_counts_no_reset_step():
    agent, networks = agent_and_networks()
    state = agent.init_actor_state(networks.online, NUM_ENVS, jax.random.key(0), 0)
    env_step = jax.tree.map(lambda x: x[0], random_env_steps(0, 1, NUM_ENVS))
    ends = np.arange(NUM_ENVS) % 2 == 0
    env_step = dataclasses.replace(env_step, terminated=ends, truncated=np.zeros_like(ends))
    _, _, state = jitted(agent.act, static_argnames="greedy")(
        networks.online, state, env_step, greedy=False
    )
    np.testing.assert_array_equal(state.env_steps, 1 - ends)


def test_ladder_goes_on_from_actor_to_actor():
    config = dataclasses.replace(CONFIG, epsilon=0.4, epsilon_exponent=7.0)
    agent = DDQN(config, dataclasses.replace(RUN_SPEC, num_actors=2, num_envs=4))
    states = [agent.init_actor_state((), 4, jax.random.key(0), actor_id) for actor_id in (0, 1)]
    np.testing.assert_allclose(
        jnp.concatenate([jitted(agent.exploration.epsilon)(state) for state in states]),
        [0.4, 0.16, 0.064, 0.0256, 0.01024, 0.004096, 0.001638, 0.000655],
        atol=5e-7,
    )


@pytest.mark.parametrize("replay_ratio, updates", [(0.75, 14), (1.0, 18), (10.0, 187)])
def test_num_updates_keep_the_replay_ratio_exactly(replay_ratio, updates):
    agent, _ = agent_and_networks(replay_ratio=replay_ratio)
    counts = [agent.num_updates_per_cycle(cycle) for cycle in range(20)]
    # 32 rows a cycle; an update learns from 32; learning starts after 40.
    assert sum(counts) == int(replay_ratio * (20 * 32 - 40) / 32) == updates
    assert counts[0] == 0
    assert max(counts[2:]) - min(counts[2:]) <= 1


def test_replay_metrics_are_of_all_rows():
    agent, networks = agent_and_networks()
    experience = filled(agent, networks)
    # 6 trajectories of 32 rows: 152 beyond the minimum, 4 × 152 / 32 = 19 updates.
    _, (_, metrics) = jitted(agent.loss)(networks, experience, jax.random.key(0), Clock.at(18))
    assert sum(agent.num_updates_per_cycle(cycle) for cycle in range(6)) == 19
    np.testing.assert_allclose(metrics["replay_ratio"], 4.0)
    done = random_env_steps(0, 6 * LENGTH, NUM_ENVS).done[8:23]
    assert int(metrics["replay_sequences"]) == np.count_nonzero(~done)


def test_optimize_copies_to_the_target_once_a_period_also_after_a_discarded_update():
    agent, networks = agent_and_networks()
    check_copies_to_the_target(agent, networks, agent.init_experience(networks, NUM_ENVS))


def test_actors_get_the_online_parameters_only():
    agent, networks = agent_and_networks()
    assert agent.actor_networks(networks) is networks.online
    validate_agent(agent, RUN_SPEC)


@pytest.mark.parametrize(
    "space", [gymnasium.spaces.Box(-1.0, 1.0, (2,)), gymnasium.spaces.Discrete(3, start=1)]
)
def test_other_actions_are_refused(space):
    environment = dataclasses.replace(RUN_SPEC.environment, action_space=space)
    with pytest.raises(ConfigError, match="Discrete action space from 0"):
        DDQN(CONFIG, dataclasses.replace(RUN_SPEC, environment=environment))
