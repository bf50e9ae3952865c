"""What every on-policy agent keeps: acting and learning agree, and resets teach nothing."""

import dataclasses
import functools
import re

import chex
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sebulba.agent_check import AgentError, validate_agent, validate_sharded_state
from sebulba.devices.learner_devices import LearnerDevices
from sebulba.errors import ConfigError
from sebulba.toolkit.distributions import Categorical
from sebulba.types import Clock, EnvironmentSpec
from sebulba_agents.a2c import make_a2c
from sebulba_agents.actor_critic import ActorCriticExtras
from sebulba_agents.config import A2CConfig, ImpalaConfig, PolicyGradientConfig, PPOConfig
from sebulba_agents.impala import make_impala
from sebulba_agents.policy_gradient import make_policy_gradient
from sebulba_agents.ppo import PPO
from tests.compiled import jitted
from tests.on_policy import (
    LENGTH,
    NUM_ACTIONS,
    NUM_ENVS,
    OBSERVATION,
    act_along_stream,
    add_trajectory,
    evaluate,
    make_networks,
    make_run_spec,
    make_stream,
    truncated_after,
)
from tests.ring_parts import make_learner, placed_item, published, update
from tests.streams import random_env_steps

MAKERS = {
    "impala": (make_impala, ImpalaConfig),
    "ppo": (PPO, PPOConfig),
    "a2c": (make_a2c, A2CConfig),
    "policy_gradient": (make_policy_gradient, PolicyGradientConfig),
}
# One minibatch: learner devices shuffle for themselves, and several would differ.
REWARD_CLIP = 0.5
ONE_MINIBATCH = {"ppo": {"num_minibatches": 1}}

every_agent = pytest.mark.parametrize("name", MAKERS)
with_and_without_memory = pytest.mark.parametrize("lstm_size", [None, 6])
with_memory_when_slow = pytest.mark.parametrize(
    "lstm_size", [None, pytest.param(6, marks=pytest.mark.slow)]
)
SLOWER = [name for name in MAKERS if name != "a2c"]


def make_agent(name, run_spec=None, **changes):
    return _make(name, run_spec, **changes) if run_spec else agent_of(name, **changes)


@functools.cache
def agent_of(name, **changes):
    """Return the agent of these settings, always the same: what is compiled of it is kept."""
    return _make(name, make_run_spec(), **changes)


def _make(name, run_spec, **changes):
    make, config_class = MAKERS[name]
    settings = {"hidden_sizes": (8, 8), "entropy_cost": 0.01, "reward_clip": REWARD_CLIP}
    settings |= ONE_MINIBATCH.get(name, {})
    return make(config_class(**settings | changes), run_spec)


@functools.cache
def acted(lstm_size, end=None, seed=0):
    """Return networks, and what was acted with them; every agent acts by the same code.

    Args:
        lstm_size: of the network.
        end: the row at which the stream is truncated; None: it ends now and then.
        seed: of networks and stream.
    """
    agent = make_agent("a2c", lstm_size=lstm_size, reward_clip=REWARD_CLIP)
    networks = make_networks(agent, seed)
    stream = make_stream(seed) if end is None else truncated_after(end)
    return networks, *act_along_stream(agent, networks, stream)


def with_observation(experience, observation):
    """Return the experience with other observations in its window."""
    env_steps = dataclasses.replace(experience.trajectory.env_steps, observation=observation)
    trajectory = dataclasses.replace(experience.trajectory, env_steps=env_steps)
    return dataclasses.replace(experience, trajectory=trajectory)


def gradient_of_rows(agent, networks, experience):
    """Return `[T + 1, B, ...]`, the gradient of the loss by each row's observation."""
    observation = experience.trajectory.env_steps.observation
    return np.asarray(jitted_gradient_of_rows(agent)(observation, networks, experience))


@functools.cache
def jitted_gradient_of_rows(agent):
    def loss(observation, networks, experience):
        changed = with_observation(experience, observation)
        return agent.loss(networks, changed, jax.random.key(0), Clock.at())[0]

    return jax.jit(jax.grad(loss))


@with_and_without_memory
def test_learner_unroll_gives_the_logits_that_the_actor_had(lstm_size):
    networks, initial, trajectory = acted(lstm_size)
    agent = make_agent("a2c", lstm_size=lstm_size)
    assert trajectory.env_steps.is_first[1:].any()
    assert jnp.std(trajectory.extras.policy.logits) > 0.1
    outputs = jitted(agent.unroll_trajectory)(networks, initial.memory, trajectory)
    np.testing.assert_allclose(
        outputs.policy.logits[:-1], trajectory.extras.policy.logits, rtol=1e-5, atol=1e-5
    )


@every_agent
def test_rows_that_end_an_episode_have_no_gradient_and_all_others_have(name):
    agent = make_agent(name)
    networks, initial, trajectory = acted(None)
    experience = add_trajectory(agent, networks, initial, trajectory)
    valid = experience.trajectory.valid
    assert not valid.all() and valid.any()
    has_gradient = gradient_of_rows(agent, networks, experience).any(axis=-1)
    np.testing.assert_array_equal(has_gradient[:-1], valid)
    assert not has_gradient[-1].any()


@every_agent
@with_memory_when_slow
def test_the_ignored_action_of_a_final_observation_changes_nothing(name, lstm_size):
    agent = make_agent(name, lstm_size=lstm_size)
    networks, initial, trajectory = acted(lstm_size)
    later, _, _ = acted(lstm_size, seed=1)
    done = ~trajectory.valid
    assert done.any()
    action = jnp.where(done, (trajectory.action + 1) % NUM_ACTIONS, trajectory.action)
    logits = jnp.where(done[..., None], jnp.nan, trajectory.extras.policy.logits)
    changed = dataclasses.replace(
        trajectory, action=action, extras=ActorCriticExtras(policy=Categorical(logits=logits))
    )
    expected, got = (
        evaluate(agent, later, add_trajectory(agent, networks, initial, each))
        for each in (trajectory, changed)
    )
    chex.assert_tree_all_finite(got)
    chex.assert_trees_all_equal(got, expected)


@pytest.mark.parametrize(
    ("name", "changes"),
    # The returns of the simple policy gradient are normalised over all of them.
    [("impala", {}), ("ppo", {"normalize_advantages": False}), ("a2c", {})],
)
@with_memory_when_slow
def test_nothing_after_a_truncation_changes_what_is_learned_before_it(name, changes, lstm_size):
    end = 3
    agent = make_agent(name, lstm_size=lstm_size, **changes)
    networks, initial, trajectory = acted(lstm_size, end)
    env_steps = dataclasses.replace(
        trajectory.env_steps,
        observation=trajectory.env_steps.observation.at[end + 1 :].add(1.0),
        reward=trajectory.env_steps.reward.at[end + 1 :].add(5.0),
    )
    changed = dataclasses.replace(trajectory, env_steps=env_steps)
    before, after = (
        gradient_of_rows(agent, networks, add_trajectory(agent, networks, initial, each))
        for each in (trajectory, changed)
    )
    assert before[:end].any(axis=-1).all()
    np.testing.assert_allclose(after[: end + 1], before[: end + 1], rtol=1e-5, atol=1e-7)
    assert (abs(after[end + 1 : -1] - before[end + 1 : -1]) > 1e-3).any()


@functools.cache
def uneven_trajectories(lstm_size):
    """Return two of them, whose first environments have far fewer valid transitions."""
    often = random_env_steps(0, LENGTH, NUM_ENVS // 2, OBSERVATION, done_probability=0.7)
    never = random_env_steps(1, LENGTH, NUM_ENVS // 2, OBSERVATION, done_probability=0.0)
    stream = jax.tree.map(lambda *x: np.concatenate(x, axis=1), often, never)
    agent = make_agent("a2c", lstm_size=lstm_size)
    return [act_along_stream(agent, make_networks(agent, seed), stream) for seed in range(2)]


def one_update_on(name, num_devices, **changes):
    """Return the parameters and metrics after a learner cycle of two trajectories."""
    learners = LearnerDevices(jax.devices()[:num_devices])
    run_spec = make_run_spec(num_learner_devices=num_devices, trajectories_per_cycle=2)
    agent = make_agent(name, run_spec, optimizer="rmsprop", rmsprop_epsilon=0.01, **changes)
    learner = make_learner(agent, learners, num_envs=NUM_ENVS, seed=0)
    items = [
        placed_item(agent, learners, initial, trajectory, sequence_number=number)
        for number, (initial, trajectory) in enumerate(uneven_trajectories(changes["lstm_size"]))
    ]
    metrics = update(learner, items)
    return jax.device_get((published(learner), metrics))


@pytest.mark.parametrize(
    "name", ["a2c", *(pytest.param(n, marks=pytest.mark.slow) for n in SLOWER)]
)
def test_the_number_of_learner_devices_never_changes_the_update(name):
    expected, got = (one_update_on(name, number, lstm_size=None) for number in (1, 2))
    chex.assert_trees_all_close(got, expected, rtol=1e-5, atol=1e-5)


@every_agent
@pytest.mark.parametrize(
    ("network", "lstm_size"),
    [("mlp", None), ("mlp", 6), pytest.param("deep", None, marks=pytest.mark.slow)],
)
def test_the_agent_keeps_the_protocol_and_takes_its_own_trajectories_in(name, network, lstm_size):
    observation = {
        "mlp": {"a": jax.ShapeDtypeStruct((), jnp.int32)},
        "deep": jax.ShapeDtypeStruct((4, 84, 84), jnp.uint8),
    }[network]
    environment = EnvironmentSpec(
        observation=observation, action_space=gymnasium.spaces.Discrete(NUM_ACTIONS)
    )
    run_spec = make_run_spec(environment=environment, trajectories_per_cycle=3)
    agent = make_agent(name, run_spec, network=network, lstm_size=lstm_size)
    validate_agent(agent, run_spec)

    def cycle(key):
        networks = agent.init_networks(key)
        state = agent.init_actor_state(networks, NUM_ENVS, key, 0)
        experience = agent.init_experience(networks, NUM_ENVS)
        env_steps = jax.tree.map(lambda x: x[:, :NUM_ENVS], experience.trajectory.env_steps)
        row = jax.tree.map(lambda x: x[0], env_steps)
        action, extras, _ = agent.act(networks, state, row, greedy=False)
        action, extras = jax.tree.map(lambda x: jnp.stack([x] * LENGTH), (action, extras))
        trajectory = type(experience.trajectory)(env_steps=env_steps, action=action, extras=extras)
        updated = agent.update_experience(
            networks, experience, state, state, trajectory, jnp.int32(0)
        )
        loss, (after, metrics) = agent.loss(networks, updated, key, Clock.at())
        return experience, updated, after, loss, metrics

    experience, updated, after, loss, metrics = jax.eval_shape(cycle, jax.random.key(0))
    for later in (updated, after):
        chex.assert_trees_all_equal_shapes_and_dtypes(experience, later)
    assert experience.trajectory.action.shape == (LENGTH, 3 * NUM_ENVS)
    assert {leaf.shape for leaf in (loss, *metrics.values())} == {()}


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [*((name, {}, False) for name in MAKERS), ("ppo", {"num_minibatches": 2}, True)],
)
def test_rows_are_shuffled_and_gathered_only_for_several_minibatches(name, changes, expected):
    agent = make_agent(name, **changes)
    networks, initial, trajectory = acted(None)
    experience = add_trajectory(agent, networks, initial, trajectory)
    program = str(jax.make_jaxpr(agent.loss)(networks, experience, jax.random.key(0), Clock.at()))
    gathered_sizes = re.findall(r"f32\[[\d,]*?(\d+)\] = gather", program)
    shuffling = str(
        jax.make_jaxpr(add_trajectory, static_argnums=0)(agent, networks, initial, trajectory)
    )
    assert ("random_bits" in shuffling) == expected and "random_bits" not in program
    # A density gathers the taken action's logit; rows of the observation have another size.
    assert (str(*OBSERVATION) in gathered_sizes) == expected


@every_agent
@pytest.mark.parametrize(
    "action_space",
    [
        gymnasium.spaces.Box(-1.0, 1.0, (2, 2), np.float32),
        gymnasium.spaces.MultiDiscrete([[2, 3]]),
        gymnasium.spaces.MultiDiscrete([2, 3], start=[0, 1]),
        gymnasium.spaces.Discrete(3, start=1),
    ],
)
def test_an_action_space_that_has_no_policy_is_refused(name, action_space):
    environment = EnvironmentSpec(
        observation=jax.ShapeDtypeStruct(OBSERVATION, jnp.float32), action_space=action_space
    )
    with pytest.raises(ConfigError, match=rf"env\.id: {name} expects .* Discrete .* got"):
        make_agent(name, make_run_spec(environment=environment))


def test_actor_state_is_split_over_the_devices_but_for_the_key():
    agent = make_agent("a2c", lstm_size=6)
    learners = LearnerDevices(jax.devices())
    networks = jitted(agent.init_networks)(jax.random.key(0))
    state = agent.init_actor_state(networks, NUM_ENVS, jax.random.key(0), 0)
    placed = agent.shard_actor_state(state, learners)
    validate_sharded_state(placed, state, jax.devices())
    assert placed.key.sharding.is_fully_replicated
    for leaf in jax.tree.leaves(placed.memory):
        assert leaf.addressable_shards[0].data.shape[0] == NUM_ENVS // len(learners)


def test_an_actor_state_that_is_not_on_the_learner_devices_is_refused():
    one, *others = jax.devices()
    state = jax.device_put({"count": np.zeros(4, np.int32)}, one)
    validate_sharded_state(state, state, [one])
    for devices in ([one, others[0]], others[:1]):
        with pytest.raises(AgentError, match=r"count.*expected an array from `sharding\.split` or"):
            validate_sharded_state(state, state, devices)
    elsewhere = jax.device_put(state, others[0])
    assert validate_sharded_state(LearnerDevices([one]).split(elsewhere), elsewhere, [one]) is None


@pytest.mark.parametrize(
    ("settings", "expected"),
    [({"network": "mlp"}, True), ({"network": "relu_mlp"}, True), ({"network": "flat"}, False)],
)
def test_dense_layers_are_not_shared_by_policy_and_value(settings, expected):
    networks = jax.eval_shape(make_agent("impala", **settings).init_networks, jax.random.key(0))
    assert ("value_torso" in networks.params["params"]) == expected
