"""Groups of players with networks of their own, as one agent."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sebulba.agent import Agent, declared
from sebulba.agent_check import validate_agent, validate_learning
from sebulba.config.agents import make_agent
from sebulba.config.loading import load_config
from sebulba.config.run_spec import make_run_spec
from sebulba.envs import make_environment
from sebulba.errors import ConfigError
from sebulba.toolkit.player_groups import GroupedAgent
from sebulba.types import Clock, EnvStep, Trajectory
from tests.compiled import jitted

NUM_ENVS, NUM_ROWS, LENGTH = 2, 6, 4
GROUPS = "{odd: [1], even: [2, 0]}"
FLAGS = [
    *("--env.id", "tests.envs.roles:Roles", "--actor.threads-per-device", "1"),
    *("--actor.num-envs", str(NUM_ENVS), "--actor.trajectory-length", str(LENGTH)),
    *("--agent.hidden-sizes", "[4]"),
]
PPO = ("--agent.num-epochs", "1", "--agent.num-minibatches", "1")


def make(*flags, groups=GROUPS, config="ppo_bandit", **changes):
    settings = load_config(f"configs/{config}.yaml", [*FLAGS, "--env.groups", groups, *flags])
    spec = make_environment(settings.env, num_envs=1, seed=0).spec
    run_spec = make_run_spec(settings, dataclasses.replace(spec, **changes), 1, 1)
    return make_agent(settings.agent, run_spec), run_spec


def rows_of(number):
    """Return one row of all players that see one light."""
    seen = np.eye(3, dtype=np.float32)[number].repeat(NUM_ROWS, axis=0).reshape(NUM_ROWS, 3)
    flags = np.zeros(NUM_ROWS, bool)
    return EnvStep(
        observation=seen,
        reward=np.zeros(NUM_ROWS, np.float32),
        terminated=flags,
        truncated=flags,
        is_first=flags,
    )


def with_habit(networks, action):
    """Return networks that choose an action whatever they see, by the last layer's bias."""
    habit = 100.0 * jax.nn.one_hot(action, 3)
    params = jax.tree_util.tree_map_with_path(
        lambda path, leaf: leaf + habit if leaf.shape == (3,) else leaf, networks.params
    )
    return dataclasses.replace(networks, params=params)


def test_each_player_acts_with_the_networks_of_its_group():
    agent, run_spec = make(*PPO)
    assert isinstance(agent, GroupedAgent)
    validate_agent(agent, run_spec)
    validate_learning(agent, run_spec)
    networks = jitted(agent.init_networks)(jax.random.key(0))
    networks = {"odd": with_habit(networks["odd"], 1), "even": with_habit(networks["even"], 2)}
    state = init_actor_state(agent, networks)
    act = jitted(agent.act, static_argnames="greedy")
    action, extras, _ = act(networks, state, rows_of([0]), greedy=False)
    assert action.tolist() == [2, 1, 2] * NUM_ENVS
    assert jnp.argmax(extras.policy.logits, axis=-1).tolist() == [2, 1, 2] * NUM_ENVS


def init_actor_state(agent, networks):
    init = jitted(agent.init_actor_state, static_argnums=(1, 3))
    return init(networks, NUM_ROWS, jax.random.key(1), 0)


def trajectory_of(agent, networks, rng):
    """Return a trajectory of random numbers, and the actor state before and after it."""
    shape = (LENGTH + 1, NUM_ROWS)
    before = init_actor_state(agent, networks)
    flags = np.zeros(shape, bool)
    rows = EnvStep(
        observation=rng.normal(size=(*shape, 3)).astype(np.float32),
        reward=rng.normal(size=shape).astype(np.float32),
        terminated=flags,
        truncated=flags,
        is_first=flags,
    )
    acted, after = [], before
    for t in range(LENGTH):
        row = jax.tree.map(lambda leaf, t=t: leaf[t], rows)
        action, extras, after = jitted(agent.act, static_argnames="greedy")(
            networks, after, row, greedy=False
        )
        acted.append((action, extras))
    action, extras = jax.tree.map(lambda *leaves: np.stack(leaves), *acted)
    return Trajectory(env_steps=rows, action=action, extras=extras), before, after


@pytest.mark.parametrize("groups", ["{}", GROUPS])
def test_exploration_counts_the_rows_of_the_players_of_all_groups(groups):
    schedule = "{schedule: linear, start: 1.0, end: 0.0, env_steps: 6000}"
    agent, _ = make("--agent.epsilon", schedule, groups=groups, config="pqn_bandit")
    networks = jitted(agent.init_networks)(jax.random.key(0))
    state = agent.advance_actor_state(init_actor_state(agent, networks), 3000)
    agents = {"all": agent} if groups == "{}" else agent._agents
    states = {"all": state} if groups == "{}" else state
    for name, state in states.items():
        np.testing.assert_array_equal(state.env_steps, 3000 // NUM_ROWS)
        np.testing.assert_allclose(agents[name].exploration.epsilon(state), 0.5)


def test_a_group_learns_from_the_rows_of_its_players_alone():
    agent, _ = make(*PPO)
    networks = jitted(agent.init_networks)(jax.random.key(0))
    trajectory, before, after = trajectory_of(agent, networks, np.random.default_rng(0))

    def learned(trajectory):
        experience = agent.init_experience(networks, NUM_ROWS)
        experience = agent.update_experience(
            networks, experience, before, after, trajectory, jnp.int32(0)
        )
        loss = jax.value_and_grad(agent.loss, has_aux=True)
        (value, (experience, metrics)), grads = loss(
            networks, experience, jax.random.key(2), Clock.at()
        )
        state = agent.init_opt_state(networks)
        new, _ = agent.optimize(networks, state, grads, experience, Clock.at())
        return value, metrics, new

    reward = trajectory.env_steps.reward.copy()
    reward[:, 1::3] *= -2.0  # of player 1
    other = dataclasses.replace(
        trajectory, env_steps=dataclasses.replace(trajectory.env_steps, reward=reward)
    )
    (loss, metrics, new), (_, _, changed) = (jax.jit(learned)(each) for each in (trajectory, other))
    is_same = jax.tree.map(lambda one, two: bool((one == two).all()), new, changed)
    assert all(jax.tree.leaves(is_same["even"])) and not all(jax.tree.leaves(is_same["odd"]))
    is_old = jax.tree.map(lambda one, two: bool((one == two).all()), new, networks)
    assert not all(jax.tree.leaves(is_old["even"]))
    assert {name.partition("/")[0] for name in metrics} == {"odd", "even"}
    parts = [
        metrics[f"{name}/policy_loss"]
        + 0.5 * metrics[f"{name}/value_loss"]
        - 0.01 * metrics[f"{name}/entropy"]
        for name in ("odd", "even")
    ]
    np.testing.assert_allclose(loss, sum(parts), rtol=1e-5)


def test_rows_of_a_part_of_an_environment_are_refused():
    agent, _ = make(*PPO)
    networks = jitted(agent.init_networks)(jax.random.key(0))
    with pytest.raises(ValueError, match=r"all 3 players of each environment, got 4 rows"):
        agent.init_actor_state(networks, 4, jax.random.key(1), 0)


def test_groups_of_equal_size_may_have_replay():
    agent, run_spec = make(groups="{first: [0], second: [1], third: [2]}", config="ddqn_bandit")
    validate_agent(agent, run_spec)
    networks = jax.eval_shape(agent.init_networks, jax.random.key(0))
    targets = jax.eval_shape(declared(agent, Agent, "copy_to_targets"), networks)
    assert targets.keys() == networks.keys()


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ("{one: [0, 1]}", "expected each of the players 0 to 2 in one group, .* got {'one': "),
        ("{one: [0, 1], two: [1, 2]}", "expected each of the players 0 to 2 in one group"),
        ("{one: [0, 1, 2, 3]}", "expected each of the players 0 to 2 in one group"),
        ("{one: [0, 1], two: 2}", "expected each of the players 0 to 2 in one group"),
        ("{one: [0, 1, 2], two: []}", "expected players in each group, got none in two"),
    ],
)
def test_groups_that_do_not_divide_the_players_are_refused(groups, message):
    with pytest.raises(ConfigError, match=f"^env.groups: {message}"):
        make(*PPO, groups=groups)


def test_groups_of_unequal_size_with_replay_are_refused():
    with pytest.raises(ConfigError, match=r"^env.groups: expected groups that take equal numbers"):
        make(config="ddqn_bandit")
