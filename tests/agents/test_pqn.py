"""PQN against hand-fed numbers and a slow reference along each environment's stream."""

import dataclasses
import functools

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sebulba.agent_check import validate_agent
from sebulba.errors import ConfigError
from sebulba.references import CORES
from sebulba.toolkit.minibatches import TransitionBatch, next_minibatch
from sebulba.toolkit.schedules import Schedule
from sebulba.types import Clock, EnvironmentSpec, Trajectory
from sebulba_agents.config import PQNConfig
from sebulba_agents.pqn import PQN, Memory, q_lambda_targets
from tests.compiled import jitted
from tests.on_policy import (
    LENGTH,
    NUM_ACTIONS,
    NUM_ENVS,
    act_along_stream,
    add_trajectory,
    make_run_spec,
    make_stream,
    to_device,
)
from tests.splitting import step_split, step_whole

GAMMA, LAMBDA = 0.9, 0.7
CONFIG = PQNConfig(hidden_sizes=(8,), discount=GAMMA, lambda_=LAMBDA, num_minibatches=4)


@functools.cache
def agent_and_networks(**changes):
    agent = PQN(dataclasses.replace(CONFIG, **changes), make_run_spec())
    return agent, jitted(agent.init_networks)(jax.random.key(0))


def trajectory_of(stream, seed=0):
    rng = np.random.default_rng(seed)
    action = jnp.asarray(rng.integers(NUM_ACTIONS, size=(LENGTH, NUM_ENVS)), jnp.int32)
    return Trajectory(env_steps=to_device(stream), action=action, extras=())


def experience_of(agent, networks, stream):
    experience = agent.init_experience(networks, NUM_ENVS)
    state = agent.init_actor_state(networks, NUM_ENVS, jax.random.key(0), 0)
    update = jitted(agent.update_experience)
    return update(networks, experience, state, state, trajectory_of(stream), jnp.int32(0))


def slow_target(q, stream, t, b, reward_clip=np.inf):
    """Return the mixture of all n-step returns that Q(λ) is, by its definition.

    `(1 − λ)·Σ_n λ^{n−1}·R^(n)`, where the longest return, up to the end of episode or trajectory,
    has the rest of the weight.
    """
    returns, total, factor = [], 0.0, 1.0
    for k in range(t + 1, LENGTH + 1):
        total += factor * float(np.clip(stream.reward[k, b], -reward_clip, reward_clip))
        factor *= 0.0 if stream.terminated[k, b] else GAMMA
        returns.append(total + factor * max(float(x) for x in q[k, b]))
        if stream.terminated[k, b] or stream.truncated[k, b]:
            break
    weights = [(1 - LAMBDA) * LAMBDA**n for n in range(len(returns) - 1)]
    weights.append(LAMBDA ** (len(returns) - 1))
    return sum(weight * each for weight, each in zip(weights, returns, strict=True))


@pytest.mark.parametrize("reward_clip", [None, 0.5])
def test_targets_mix_the_n_step_returns_of_each_episode(reward_clip):
    endings = set()
    for seed in range(5):
        stream = make_stream(seed)
        q = np.random.default_rng(seed).normal(size=(LENGTH + 1, NUM_ENVS, NUM_ACTIONS))
        config = dataclasses.replace(CONFIG, reward_clip=reward_clip)
        targets = q_lambda_targets(jnp.asarray(q, jnp.float32), trajectory_of(stream), config)
        for t, b in zip(*np.nonzero(~stream.done[:-1]), strict=True):
            expected = slow_target(q, stream, t, b, reward_clip or np.inf)
            np.testing.assert_allclose(targets[t, b], expected, rtol=1e-4, atol=1e-5)
            endings.add((bool(stream.terminated[t + 1, b]), bool(stream.truncated[t + 1, b])))
    assert endings == {(True, False), (False, True), (False, False)}


def test_targets_are_those_of_the_parameters_that_the_cycle_begins_with():
    agent, networks = agent_and_networks()
    stream = make_stream()
    experience = experience_of(agent, networks, stream)
    q = np.stack([jitted(agent.network.apply)(networks, row) for row in stream.observation])
    targets = experience.trajectory.extras
    for t, b in zip(*np.nonzero(~stream.done[:-1]), strict=True):
        np.testing.assert_allclose(
            targets[t, b], slow_target(q, stream, t, b), rtol=1e-4, atol=1e-5
        )
    later = jitted(agent.init_networks)(jax.random.key(1))
    _, (after, _) = jitted(agent.loss)(later, experience, jax.random.key(0), Clock.at())
    np.testing.assert_array_equal(after.trajectory.extras, targets)


def make_batch(stream, seed=0):
    """Return all transitions of a stream, with random targets."""
    rng = np.random.default_rng(seed)
    trajectory = trajectory_of(stream)
    transitions = TransitionBatch(
        env_steps=jax.tree.map(lambda leaf: leaf[:-1], trajectory.env_steps),
        action=trajectory.action,
        extras=jnp.asarray(rng.normal(size=(LENGTH, NUM_ENVS)), jnp.float32),
        valid=trajectory.valid,
    )
    return jax.tree.map(lambda leaf: leaf.reshape(1, -1, *leaf.shape[2:]), transitions)


def test_loss_is_the_mean_squared_error_of_the_actions_taken_in_valid_transitions():
    agent, networks = agent_and_networks()
    batch = make_batch(make_stream())
    loss, metrics = jitted(agent.loss_of_batch)(networks, batch)
    q = np.asarray(
        jitted(agent.network.apply)(networks, batch.env_steps.observation[0]), np.float64
    )
    errors = [
        float(batch.extras[0, i]) - q[i, int(batch.action[0, i])]
        for i in range(LENGTH * NUM_ENVS)
        if batch.valid[0, i]
    ]
    assert len(errors) < LENGTH * NUM_ENVS
    np.testing.assert_allclose(loss, np.mean(0.5 * np.square(errors)), rtol=1e-5)
    np.testing.assert_allclose(metrics["td_error"], np.mean(np.abs(errors)), rtol=1e-5)


def test_invalid_transitions_have_no_gradient():
    agent, networks = agent_and_networks()
    batch = make_batch(make_stream())

    def loss(targets):
        return agent.loss_of_batch(networks, dataclasses.replace(batch, extras=targets))[0]

    grads = jax.jit(jax.grad(loss))(batch.extras)
    np.testing.assert_array_equal(grads != 0.0, batch.valid)


def test_one_and_two_learner_devices_take_the_same_step():
    agent, networks = agent_and_networks()
    opt_state = jitted(agent.init_opt_state)(networks)
    # One device's share has far fewer valid transitions than the other's.
    batch = make_batch(make_stream())
    batch = dataclasses.replace(batch, valid=batch.valid.at[:, 4:28].set(False))
    entries = jax.tree.map(lambda leaf: leaf[0], batch)

    def loss(networks, entries):
        return agent.loss_of_batch(networks, jax.tree.map(lambda leaf: leaf[None], entries))[0]

    expected = step_whole(agent, loss, networks, opt_state, entries)
    got = step_split(agent, loss, networks, opt_state, entries, num_devices=2)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5), got, expected)
    assert float(expected[2]) > 0.0


@pytest.mark.parametrize(
    "core",
    [pytest.param(core, marks=[pytest.mark.slow] * (core in ("gtrxl", "lru"))) for core in CORES],
)
def test_with_a_core_targets_and_loss_are_those_of_whole_unrolls(core):
    """Q of every row is that of acting from row to row, also for the minibatch's gradient."""
    config = dataclasses.replace(
        CONFIG, lstm_size=8, core=core, reward_clip=0.5, evaluation_epsilon=0.0
    )
    agent, stream = PQN(config, make_run_spec()), make_stream()
    networks = jitted(agent.init_networks)(jax.random.key(0))
    initial, trajectory = act_along_stream(agent, networks, stream, greedy=True)
    experience = add_trajectory(agent, networks, initial, trajectory)
    q, memory = [], initial.memory
    for t in range(LENGTH + 1):
        row = jax.tree.map(lambda leaf, t=t: jnp.asarray(leaf[t : t + 1]), stream)
        (q_t,), state = jitted(agent.network.apply)(
            networks,
            row.observation,
            reward=jnp.clip(row.reward, -0.5, 0.5),
            last_action=memory.last_action[None],
            is_first=row.is_first,
            state=memory.core,
        )
        q.append(q_t)
        memory = Memory(core=state, last_action=trajectory.action[min(t, LENGTH - 1)])
    q = np.asarray(q, np.float64)
    np.testing.assert_array_equal(q[:-1].argmax(-1), trajectory.action)
    targets, valid = experience.trajectory.extras, ~stream.done[:-1]
    for t, b in zip(*np.nonzero(valid), strict=True):
        expected = slow_target(q, stream, t, b, reward_clip=0.5)
        np.testing.assert_allclose(targets[t, b], expected, rtol=1e-4, atol=1e-4)
    taken = np.take_along_axis(q[:-1], np.asarray(trajectory.action)[..., None], -1)[..., 0]
    of_epoch = []
    for step in range(config.num_minibatches):
        chosen = np.asarray(next_minibatch(experience, Clock.at(step), config.num_minibatches))
        errors = (targets - taken)[:, chosen][valid[:, chosen]]
        loss, _ = jitted(agent.loss)(networks, experience, jax.random.key(0), Clock.at(step))
        np.testing.assert_allclose(loss, np.mean(0.5 * np.square(errors)), rtol=1e-3, atol=1e-5)
        of_epoch += chosen.tolist()
    assert sorted(of_epoch) == list(range(NUM_ENVS)), "environments, and not transitions"


def test_without_a_core_the_actor_state_has_no_memory_and_a_run_of_before_can_be_resumed():
    agent, networks = agent_and_networks()
    state = agent.init_actor_state(networks, NUM_ENVS, jax.random.key(0), 0)
    assert state.memory == () and len(jax.tree.leaves(state)) == 3
    layers = networks["params"]
    numbered = sorted(name for name in layers if name.startswith("Dense_"))
    assert layers[numbered[-1]]["bias"].shape == (agent.network.num_actions,), "the head is last"


def test_a_core_needs_minibatches_of_environments():
    config = dataclasses.replace(CONFIG, lstm_size=8, num_minibatches=LENGTH)
    with pytest.raises(ConfigError, match=r"num_minibatches: .* divisor of the 8 environments"):
        PQN(config, make_run_spec())


def test_every_epoch_learns_once_from_every_transition():
    agent, networks = agent_and_networks()
    experience = experience_of(agent, networks, make_stream())
    steps = range(agent.num_updates_per_cycle(0))
    chosen = [np.asarray(next_minibatch(experience, Clock.at(step), 4)) for step in steps]
    assert len(chosen) == CONFIG.num_epochs * 4
    for begin in range(0, len(chosen), 4):
        of_epoch = np.concatenate(chosen[begin : begin + 4])
        np.testing.assert_array_equal(np.sort(of_epoch), np.arange(LENGTH * NUM_ENVS))
    assert (chosen[0] != chosen[4]).any()


def test_learning_rate_follows_its_schedule_and_gradients_are_clipped():
    schedule = Schedule(schedule="linear", start=0.1, end=0.0, env_steps=2 * LENGTH * NUM_ENVS)
    agent, networks = agent_and_networks(learning_rate=schedule, max_grad_norm=1.0)
    experience = experience_of(agent, networks, make_stream())
    opt_state = jitted(agent.init_opt_state)(networks)
    sizes = []
    for env_steps in (0, LENGTH * NUM_ENVS):
        grads = jax.tree.map(lambda leaf: jnp.full_like(leaf, 1e6), networks)
        clock = Clock.at(env_steps=env_steps)
        after, _ = jitted(agent.optimize)(networks, opt_state, grads, experience, clock)
        moved = jax.tree.map(lambda x, y: jnp.sum(jnp.square(x - y)), after, networks)
        sizes.append(float(jnp.sqrt(sum(jax.tree.leaves(moved)))))
    # RAdam's first steps are the bias-corrected mean gradient, here of norm 1.
    np.testing.assert_allclose(sizes, [0.1, 0.05], rtol=1e-4)


def test_act_takes_the_greatest_q_and_explores_by_the_schedule():
    agent, networks = agent_and_networks(epsilon=1.0)
    state = agent.init_actor_state(networks, NUM_ENVS, jax.random.key(0), 0)
    row = jax.tree.map(lambda leaf: leaf[0], make_stream())
    greedy, extras, _ = jitted(agent.act, static_argnames="greedy")(
        networks, state, row, greedy=True
    )
    q = jitted(agent.network.apply)(networks, row.observation)
    np.testing.assert_array_equal(greedy, np.argmax(q, axis=-1))
    assert extras == ()
    actions = []
    act = jax.jit(functools.partial(agent.act, greedy=False))
    for _ in range(30):
        action, _, state = act(networks, state, row)
        actions.append(action)
    assert set(np.ravel(actions).tolist()) == set(range(NUM_ACTIONS))


def test_agent_fits_the_protocol():
    validate_agent(agent_and_networks()[0], make_run_spec())


@pytest.mark.parametrize(
    ("network", "shape", "message"),
    [
        ("dqn", (4, 30, 84), "dqn expects images of at least 36×36"),
        ("small", (4,), "small expects an image"),
        (
            "deep",
            (4, 84, 84),
            "a network with LayerNorm, one of mlp, small, shallow, dqn or module:Name",
        ),
    ],
)
def test_networks_that_do_not_suit_are_refused(network, shape, message):
    with pytest.raises(ConfigError, match=message):
        make_agent(network, shape)


def test_a_network_of_the_users_replaces_all_layers_but_the_head():
    agent = make_agent("sebulba.toolkit.torsos:MLPTorso", (6,))
    params = jax.eval_shape(agent.init_networks, jax.random.key(0))["params"]
    assert set(params) == {"ObservationTorso_0", "Dense_0"}
    assert params["Dense_0"]["kernel"].shape == (8, NUM_ACTIONS)


@pytest.mark.parametrize(
    ("network", "shape", "kernel", "num_layers"),
    [
        ("dqn", (4, 84, 84), (8, 8, 4, 32), 4),
        ("shallow", (4, 84, 84), (8, 8, 4, 16), 3),
        ("small", (10, 10, 6), (3, 3, 6, 16), 2),
    ],
)
def test_every_hidden_layer_is_normalised(network, shape, kernel, num_layers):
    agent = make_agent(network, shape)
    params = jax.eval_shape(agent.init_networks, jax.random.key(0))["params"]
    assert params["Conv_0"]["kernel"].shape == kernel
    assert sum(name.startswith("LayerNorm") for name in params) == num_layers


def make_agent(network, shape):
    environment = EnvironmentSpec(
        observation=jax.ShapeDtypeStruct(shape, jnp.uint8),
        action_space=gymnasium.spaces.Discrete(NUM_ACTIONS),
    )
    run_spec = make_run_spec(environment=environment)
    return PQN(dataclasses.replace(CONFIG, network=network), run_spec)
