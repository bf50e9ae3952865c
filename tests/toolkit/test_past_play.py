"""Opponents out of a pool of earlier versions."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sebulba.agent import Agent, declared
from sebulba.config.agents import make_agent
from sebulba.config.loading import load_config
from sebulba.config.run_spec import make_run_spec
from sebulba.envs import make_environment
from sebulba.toolkit.past_play import PastPlay, Pool, with_opponents
from sebulba.types import Clock, EnvStep, Opponents, Trajectory
from tests.compiled import jitted

NUM_ENVS, SIZE, EVERY = 64, 3, 2
FLAGS = [
    *("--env.options", "{opponent: past, pool_size: 3, pool_every: 2, past_share: 1.0}"),
    *("--actor.num-envs", str(NUM_ENVS), "--actor.trajectory-length", "4"),
    *("--agent.hidden-sizes", "[8]", "--agent.num-epochs", "1", "--agent.num-minibatches", "1"),
]


@functools.cache
def make(*flags):
    """Return the agent of the config, its networks, and an actor state."""
    config = load_config("configs/ppo_kuhn_poker.yaml", [*FLAGS, *flags])
    spec = make_environment(config.env, num_envs=1, seed=0).spec
    agent = make_agent(config.agent, make_run_spec(config, spec, 1, 1))
    assert isinstance(agent, PastPlay)
    networks = jitted(agent.init_networks)(jax.random.key(0))
    init_actor_state = jitted(agent.init_actor_state, static_argnums=(1, 3))
    return agent, networks, init_actor_state(networks, NUM_ENVS, jax.random.key(1), 0)


def rows_of(num_rows=None, **changes):
    shape = (NUM_ENVS,) if num_rows is None else (num_rows, NUM_ENVS)
    false = jnp.zeros(shape, bool)
    row = EnvStep(
        observation=jnp.zeros((*shape, 7)),
        reward=jnp.zeros(shape),
        terminated=false,
        truncated=false,
        is_first=false,
    )
    return dataclasses.replace(row, **changes)


def with_habits(networks, habits):
    """Return networks whose version `i` of the pool chooses action `habits[i]` whatever it sees."""
    habits = 100.0 * jax.nn.one_hot(jnp.array(habits), 2) - 50.0

    def set_last(leaf):
        if leaf.shape[-1] != 2:
            return leaf
        return jnp.zeros_like(leaf) if leaf.ndim == 3 else habits

    members = networks.pool.members
    members = dataclasses.replace(members, params=jax.tree.map(set_last, members.params))
    pool = dataclasses.replace(networks.pool, members=members, num_added=jnp.float32(SIZE))
    return dataclasses.replace(networks, pool=pool)


def test_the_pool_of_networks_from_another_run_is_of_their_player():
    """Those of `init_from` come before the pool of that run, which need not fit."""
    agent, networks, _ = make()
    player = jax.tree.map(lambda leaf: leaf + 1.0, networks.player)
    copied = jitted(agent.copy_to_targets)(dataclasses.replace(networks, player=player))
    for i in range(SIZE):
        member = jax.tree.map(lambda leaf, i=i: leaf[i], copied.pool.members)
        chex.assert_trees_all_equal(member, agent.agent.actor_networks(player))


def test_each_game_is_played_by_one_version():
    agent, networks, state = make()
    networks = with_habits(networks, [0, 1, 1])
    everyone = jnp.ones(NUM_ENVS, bool)
    oppose = jitted(agent.oppose)
    action, state = oppose(networks, state, rows_of(is_first=everyone), everyone)
    assert set(state.member.tolist()) == {0, 1, 2}
    np.testing.assert_array_equal(action, state.member > 0)
    action, after = oppose(networks, state, rows_of(), everyone)
    np.testing.assert_array_equal(after.member, state.member)
    np.testing.assert_array_equal(action, state.member > 0)
    # Only games whose opponent is to move draw a new one.
    waiting = jnp.arange(NUM_ENVS) < 8
    _, after = oppose(networks, state, rows_of(is_first=everyone), waiting)
    np.testing.assert_array_equal(after.member[8:], state.member[8:])


def test_the_present_version_plays_the_other_games_and_has_no_place_in_the_pool():
    agent, networks, state = make("--env.options.past_share", "0.25")
    player = jax.tree.map(lambda leaf: leaf[1], with_habits(networks, [0, 1, 0]).pool.members)
    networks = dataclasses.replace(with_habits(networks, [0, 0, 0]), player=player)
    everyone, present = jnp.ones(NUM_ENVS, bool), 0
    for _ in range(4):
        action, state = jitted(agent.oppose)(networks, state, rows_of(is_first=everyone), everyone)
        np.testing.assert_array_equal(action, state.member == -1)
        present += int(action.sum())
    assert 0.65 < present / (4 * NUM_ENVS) < 0.85
    act = jitted(agent.act, static_argnames="greedy")
    _, extras, _ = act(networks, state, rows_of(), greedy=False)
    trajectory = Trajectory(
        env_steps=rows_of(2, terminated=jnp.ones((2, NUM_ENVS), bool)),
        action=jnp.zeros((1, NUM_ENVS), jnp.int32),
        extras=jax.tree.map(lambda leaf: leaf[None], extras),
    )
    experience = jitted(agent.init_experience, static_argnums=1)(networks, NUM_ENVS)
    update_experience = jitted(agent.update_experience)
    experience = update_experience(networks, experience, state, state, trajectory, jnp.int32(0))
    assert int(experience.pending[0].sum()) == int((state.member >= 0).sum()) > 0


def test_versions_that_the_player_beats_are_drawn_less():
    pool = Pool(
        members=(),
        num_added=jnp.float32(3),
        games=jnp.array([98.0, 98.0, 0.0, 0.0]),
        wins=jnp.array([98.0, 0.0, 0.0, 0.0]),
    )
    np.testing.assert_allclose(pool.win_rates, [0.99, 0.01, 0.5, 0.5])
    weights = np.array([0.01**2, 0.99**2, 0.25, -0.001]) + 0.001
    np.testing.assert_allclose(jax.nn.softmax(pool.logits), weights / weights.sum(), rtol=1e-5)


def test_a_version_replaces_the_oldest_every_few_updates():
    agent, networks, _ = make()
    opt_state = jitted(agent.init_opt_state)(networks)
    experience = jitted(agent.init_experience, static_argnums=1)(networks, NUM_ENVS)
    grads = jax.tree.map(jnp.ones_like, networks)
    optimize = jitted(agent.optimize)
    versions = [networks.player]
    for number in range(EVERY * SIZE + EVERY):
        networks, opt_state = optimize(networks, opt_state, grads, experience, Clock.at(number))
        if (number + 1) % EVERY == 0:
            versions.append(networks.player)
    assert networks.pool.num_added == len(versions) == 5
    expected = [versions[3], versions[4], versions[2]]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *expected)
    chex.assert_trees_all_equal(networks.pool.members, stacked)


def test_a_version_is_added_although_the_update_in_which_it_is_due_is_discarded():
    agent, networks, _ = make()
    opt_state = jitted(agent.init_opt_state)(networks)
    experience = jitted(agent.init_experience, static_argnums=1)(networks, NUM_ENVS)
    optimize, added, previous = jitted(agent.optimize), [], -1
    for number in (0, 2, 3, 4, 5):  # A period is two updates; 1 is discarded.
        clock = Clock.at(number, previous_step=previous)
        networks, opt_state = optimize(networks, opt_state, networks, experience, clock)
        added.append(int(networks.pool.num_added) - 1)
        previous = number
    assert added == [0, 1, 2, 2, 3]


def after_additions(networks, number):
    pool = dataclasses.replace(networks.pool, num_added=jnp.float32(number))
    return dataclasses.replace(networks, pool=pool)


def games_against(members, agent, networks, state):
    """Return the experience after ten games against two versions in turn."""
    done = jnp.zeros((5, NUM_ENVS), bool).at[1, :10].set(True).at[4, 10:20].set(True)
    reward = jnp.zeros((5, NUM_ENVS)).at[1, :4].set(2.0).at[1, 4:7].set(-1.0)
    member = jnp.tile(jnp.array(members, jnp.int32), (4, NUM_ENVS // 2))
    act = jitted(agent.act, static_argnames="greedy")
    _, extras, _ = act(networks, state, rows_of(), greedy=False)
    extras = jax.tree.map(lambda leaf: jnp.stack([leaf] * 4), extras)
    trajectory = Trajectory(
        env_steps=rows_of(5, terminated=done, reward=reward),
        action=jnp.zeros((4, NUM_ENVS), jnp.int32),
        extras=dataclasses.replace(extras, member=member, returns=reward[:-1]),
    )
    experience = jitted(agent.init_experience, static_argnums=1)(networks, NUM_ENVS)
    update_experience = jitted(agent.update_experience)
    return update_experience(networks, experience, state, state, trajectory, jnp.int32(0))


def outcomes_of(rows, agent, networks, state):
    """Return games and wins `[m]` of the games of rows, the last of which nobody acts on."""
    act, extras = jitted(agent.act, static_argnames="greedy"), []
    for row in rows[:-1]:
        _, each, state = act(networks, state, row, greedy=False)
        extras.append(each)
    trajectory = Trajectory(
        env_steps=jax.tree.map(lambda *leaves: jnp.stack(leaves), *rows),
        action=jnp.zeros((len(extras), NUM_ENVS), jnp.int32),
        extras=jax.tree.map(lambda *leaves: jnp.stack(leaves), *extras),
    )
    experience = jitted(agent.init_experience, static_argnums=1)(networks, NUM_ENVS)
    update_experience = jitted(agent.update_experience)
    experience = update_experience(networks, experience, state, state, trajectory, jnp.int32(0))
    return np.asarray(experience.pending)


def test_the_sign_of_a_games_return_decides_it_not_that_of_its_last_reward():
    agent, networks, state = make()
    everyone = jnp.ones(NUM_ENVS, bool)
    first = rows_of(is_first=everyone)
    rows = [first, rows_of(reward=jnp.full(NUM_ENVS, -3.0))]
    rows.append(rows_of(reward=jnp.ones(NUM_ENVS), terminated=everyone))
    _, state = jitted(agent.oppose)(networks, state, first, everyone)
    games, wins = outcomes_of([*rows, first], agent, networks, state)
    assert games.sum() == NUM_ENVS and wins.sum() == 0


def test_a_game_in_which_no_opponent_moved_counts_for_no_version():
    agent, networks, state = make()
    networks = after_additions(networks, SIZE)
    everyone = jnp.ones(NUM_ENVS, bool)
    first = rows_of(is_first=everyone)
    won = rows_of(reward=jnp.ones(NUM_ENVS), terminated=everyone)
    lost = rows_of(reward=-jnp.ones(NUM_ENVS), terminated=everyone)
    games, _ = outcomes_of([first, won, first], agent, networks, state)
    assert games.sum() == 0
    # The opponent begins only the first game, which the player loses.
    _, state = jitted(agent.oppose)(networks, state, first, everyone)
    games, wins = outcomes_of([first, lost, first, won, first], agent, networks, state)
    np.testing.assert_array_equal(games, np.bincount(state.member, minlength=SIZE))
    assert wins.sum() == 0


def test_games_count_for_the_version_that_played_them():
    agent, networks, state = make()
    networks = after_additions(networks, SIZE)
    opt_state = jitted(agent.init_opt_state)(networks)
    experience = games_against([0, 1], agent, networks, state)
    # The games that end in the last row are counted with the next trajectory, whose first it is.
    np.testing.assert_array_equal(experience.pending[0], [5, 5, 0])
    # Games 0 to 3 are won, 4 to 6 are lost and 7 to 9 are drawn.
    np.testing.assert_array_equal(experience.pending[1], [2 + 0.5, 2 + 1.0, 0])
    for number in range(2):  # The second step of a learner cycle does not count them again.
        _, (experience, metrics) = jitted(agent.loss)(
            networks, experience, jax.random.key(0), Clock.at(number)
        )
        networks, opt_state = jitted(agent.optimize)(
            networks, opt_state, networks, experience, Clock.at(2 * number)
        )
        np.testing.assert_array_equal(networks.pool.games, [5, 5, 0])
    assert metrics["win_rate_2"] == pytest.approx(0.5)


def test_games_against_a_replaced_version_do_not_count_for_the_one_in_its_place():
    agent, networks, state = make()
    networks = after_additions(networks, SIZE + 1)  # Version 3 has taken the place of version 0.
    replaced = games_against([0, 1], agent, networks, state)
    np.testing.assert_array_equal(replaced.pending[0], [0, 5, 0])
    in_the_pool = games_against([SIZE, 1], agent, networks, state)
    np.testing.assert_array_equal(in_the_pool.pending[0], [5, 5, 0])


def test_a_game_draws_the_number_of_its_version():
    agent, networks, state = make()
    networks = after_additions(networks, SIZE + 2)
    everyone = jnp.ones(NUM_ENVS, bool)
    _, state = jitted(agent.oppose)(networks, state, rows_of(is_first=everyone), everyone)
    assert set(state.member.tolist()) == {2, 3, 4}
    # The places of an empty pool have no number that a game could have.
    assert set(after_additions(networks, 1).pool.numbers.tolist()) == {0, -2, -1}


@pytest.mark.parametrize("opponents", [Opponents(), Opponents(pool_size=3, pool_every=2)])
def test_optional_parts_of_the_protocol_are_the_agents_own(opponents):
    class WithParts:
        mixes_players = True
        learns_from_final_observations = True

        def policy_observation(self, observation):
            return observation["seen"]

    agent = with_opponents(WithParts(), opponents)
    assert declared(agent, Agent, "mixes_players")
    assert declared(agent, Agent, "learns_from_final_observations")
    assert declared(agent, Agent, "policy_observation")({"seen": 1, "state": 2}) == 1
