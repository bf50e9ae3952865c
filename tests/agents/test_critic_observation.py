"""Actor-critics whose value function sees more than their policy."""

import dataclasses
import functools

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sebulba.agent_check import validate_agent
from sebulba.config import EnvConfig
from sebulba.config.loading import load_config
from sebulba.envs import make_environment
from sebulba.errors import ConfigError
from sebulba.types import EnvironmentSpec
from sebulba_agents.config import PolicyGradientConfig, PPOConfig
from sebulba_agents.policy_gradient import make_policy_gradient
from sebulba_agents.ppo import PPO
from tests.agents.test_actor_critics import MAKERS, ONE_MINIBATCH
from tests.compiled import jitted
from tests.on_policy import evaluate, make_experience, make_networks, make_run_spec, make_stream

STATE = 5
ENVIRONMENT = EnvironmentSpec(
    observation={
        "observation": jax.ShapeDtypeStruct((4,), jnp.float32),
        "state": jax.ShapeDtypeStruct((STATE,), jnp.float32),
    },
    action_space=gymnasium.spaces.Discrete(3),
)
every_critic = pytest.mark.parametrize("name", ["ppo", "impala", "a2c"])
NETWORKS = {
    "a torso per head": {},
    "memory": {"lstm_size": 6},
    "a shared torso": {"network": "tests.agents.test_critic_observation:own_network"},
    "moments": {"normalize_observations": True},
}
every_network = pytest.mark.parametrize("settings", NETWORKS.values(), ids=NETWORKS)


def own_network(hidden_sizes):
    from sebulba.toolkit.torsos import MLPTorso

    return MLPTorso(hidden_sizes)


@functools.cache
def _agent(name, settings):
    make, config_class = MAKERS[name]
    config = config_class(
        hidden_sizes=(8,),
        critic_observation="state",
        **ONE_MINIBATCH.get(name, {}),
        **dict(settings),
    )
    return make(config, make_run_spec(environment=ENVIRONMENT))


def agent_of(name, settings):
    return _agent(name, tuple(settings.items()))


def complete_stream(seed=0):
    """Return rows whose observations have a state."""
    rows = make_stream(seed)
    rng = np.random.default_rng(seed)
    state = rng.normal(size=(*rows.reward.shape, STATE)).astype(np.float32)
    return with_state(
        dataclasses.replace(rows, observation={"observation": rows.observation}), state
    )


def with_state(rows, state):
    return dataclasses.replace(rows, observation={**rows.observation, "state": state})


def first_row(rows):
    return jax.tree.map(lambda leaf: leaf[0], rows)


@every_network
def test_the_policy_is_blind_to_the_state_and_the_value_is_not(settings):
    agent = agent_of("a2c", settings)
    networks, rows = make_networks(agent), complete_stream()
    other = with_state(rows, rows.observation["state"] + 1.0)
    last_action = jnp.zeros(rows.reward.shape, jnp.int32)
    core = agent.init_actor_state(networks, rows.reward.shape[1], jax.random.key(0), 0).memory.core
    outputs, others = (
        jitted(agent.unroll)(networks, each, last_action, core)[0] for each in (rows, other)
    )
    np.testing.assert_array_equal(outputs.policy.logits, others.policy.logits)
    assert jnp.std(outputs.policy.logits) > 0.1
    assert (jnp.abs(outputs.values - others.values) > 1e-4).all()


@every_network
def test_acting_needs_no_state(settings):
    agent = agent_of("a2c", settings)
    networks, row = make_networks(agent), first_row(complete_stream())
    state = agent.init_actor_state(networks, row.reward.shape[0], jax.random.key(0), 0)
    without = dataclasses.replace(row, observation=agent.policy_observation(row.observation))
    assert without.observation is row.observation["observation"]
    act = jitted(agent.act, static_argnames="greedy")
    acted, blind = (act(networks, state, each, greedy=False) for each in (row, without))
    np.testing.assert_array_equal(acted[0], blind[0])
    np.testing.assert_array_equal(acted[1].policy.logits, blind[1].policy.logits)


def test_acting_computes_no_value():
    agent = agent_of("ppo", {})
    networks, row = make_networks(agent), first_row(complete_stream())
    state = agent.init_actor_state(networks, row.reward.shape[0], jax.random.key(0), 0)
    kernel = networks.params["params"]["value_torso"]["mlp"]["Dense_0"]["kernel"]
    act = jitted(agent.act, static_argnames="greedy")
    program = act.lower(networks, state, row, greedy=True).compile().as_text()
    assert "f32[4,8]" in program  # of the policy
    assert kernel.shape == (4 + STATE, 8) and "f32[9,8]" not in program


@every_critic
@every_network
def test_the_loss_learns_from_the_state(name, settings):
    agent = agent_of(name, settings)
    validate_agent(agent, make_run_spec(environment=ENVIRONMENT))
    networks, rows = make_networks(agent), complete_stream()
    losses = []
    for each in (rows, with_state(rows, 2.0 * rows.observation["state"])):
        loss, _, grads = evaluate(agent, networks, make_experience(agent, networks, each))
        losses.append(float(loss))
        torso = grads.params["params"]["value_torso"]
        assert all(np.any(leaf) for leaf in jax.tree.leaves(torso))
    assert losses[0] != losses[1]


def test_an_agent_without_the_setting_has_the_parameters_it_had():
    make, config_class = MAKERS["ppo"]
    agent = make(config_class(hidden_sizes=(8,)), make_run_spec())
    params = agent.init_networks(jax.random.key(0)).params["params"]
    assert params.keys() == {"torso", "value_torso", "policy", "value"}
    observation = np.zeros((2, 4), np.float32)
    assert agent.policy_observation(observation) is observation


def test_an_agent_without_a_value_function_refuses_the_setting():
    config = PolicyGradientConfig(critic_observation="state")
    with pytest.raises(
        ConfigError, match=r"agent.critic_observation: .*policy_gradient has no val"
    ):
        make_policy_gradient(config, make_run_spec(environment=ENVIRONMENT))


@pytest.mark.parametrize("name", ["ddqn", "pqn", "r2d2", "sac"])
def test_an_agent_of_another_kind_has_no_such_setting(name):
    with pytest.raises(ConfigError, match=r"critic.observation"):
        load_config(
            f"configs/{name}_bandit.yaml" if name != "r2d2" else "configs/r2d2_recall.yaml",
            ["--agent.critic-observation", "state"],
        )


def test_privileged_observations_of_one_player_are_for_the_value_alone():
    name = "G1JoystickFlatTerrain-v1"
    environment = make_environment(EnvConfig(suite="envpool", id=name), num_envs=1, seed=0)
    spec = environment.spec
    environment.close()
    config = PPOConfig(critic_observation="privileged_state", num_minibatches=1)
    run_spec = make_run_spec(environment=spec)
    agent = PPO(config, run_spec)
    validate_agent(agent, run_spec)
    assert agent.policy_observation(spec.observation) == spec.observation["state"]
