"""Games in turns whose opponent moves with the learner's networks."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sebulba
from sebulba.config.loading import load_config
from sebulba.errors import ConfigError
from sebulba.run import training
from sebulba.toolkit.past_play import player_of
from sebulba.toolkit.self_play import SelfPlay, SelfPlayState
from sebulba_agents.actor_critic import ActorCriticAgent
from tests.envs.kuhn import bets_of, exploitability
from tests.rings import act, close, make_ring, run_config

SMALL = [
    *("--actor.num-envs", "8", "--actor.trajectory-length", "6", "--agent.hidden-sizes", "[8]"),
    *("--run.mode", "serial", "--run.total-env-steps", "600"),
    *("--agent.num-epochs", "1", "--agent.num-minibatches", "1"),
]


def config_of(*flags, opponent="self"):
    env = ["--env.options.opponent", opponent]
    if opponent == "past":
        env += ["--env.options.pool_size", "3", "--env.options.pool_every", "2"]
    return load_config("configs/ppo_kuhn_poker.yaml", [*SMALL, *env, *flags])


def always_bet(networks):
    """Return networks whose policy bets whatever it sees, which the last layer of two says."""

    def bet(leaf):
        if leaf.shape[-1:] != (2,):
            return leaf
        return jnp.zeros_like(leaf) + (jnp.array([-50.0, 50.0]) if leaf.ndim == 1 else 0.0)

    return dataclasses.replace(networks, params=jax.tree.map(bet, networks.params))


def test_the_opponent_moves_with_the_networks_of_the_act_cycle():
    ring = make_ring(config_of())
    try:
        collector, point = ring.actors[0].collector, ring.actors[0].point
        networks = ring.learner.networks_on(ring.actors[0].device)
        for _ in range(2):  # In the first, some opponents have moved at random before row 0.
            collected = collector.collect(always_bet(networks), point)
            point = dataclasses.replace(point, cycle=point.cycle + 1, carry=collected.carry)
    finally:
        close(ring)
    rows = collected.trajectory.env_steps
    assert (collected.trajectory.action == 1).all()
    assert set(np.abs(rows.reward[rows.done]).tolist()) == {2.0}  # each game is a bet and a call
    histories = set(np.argmax(rows.observation[~rows.done][:, 3:], axis=-1).tolist())
    assert histories == {0, 2}  # nothing, or a bet


@pytest.mark.parametrize(
    "core", [(), pytest.param(("--agent.lstm-size", "4"), marks=pytest.mark.slow)]
)
def test_one_program_learns_the_same_as_acting_and_learning_in_turn(core):
    serial, _, _ = run_config(config_of(*core))
    one, _, _ = run_config(config_of(*core, "--run.mode", "anakin"))
    chex.assert_trees_all_close(
        serial.learner.state.networks, one.learner.state.networks, rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("opponent", [pytest.param("self", marks=pytest.mark.slow), "past"])
def test_a_run_repeats_and_resumes_exactly(tmp_path, opponent):
    config = config_of(opponent=opponent)
    whole, _, _ = run_config(config)
    run_config(config, tmp_path, stop_at_cycle=5)
    resumed, _, was = run_config(
        dataclasses.replace(config, resume="latest"), tmp_path, which="latest"
    )
    assert was.level == "exact" and was.num_cycles == 5
    chex.assert_trees_all_equal(whole.learner.state.networks, resumed.learner.state.networks)


def test_waiting_players_keep_their_memory():
    ring = make_ring(config_of("--agent.lstm-size", "4"))
    try:
        agent, carry = ring.programs.agent, ring.actors[0].point.carry
        networks = ring.learner.networks_on(ring.actors[0].device)
        assert isinstance(agent, SelfPlay) and isinstance(agent.agent, ActorCriticAgent)
        waiting = jnp.arange(8) < 3
        row = jax.tree.map(jnp.asarray, carry.env_step)
        _, after = jax.jit(agent.oppose)(networks, carry.actor_state, row, waiting)
        memories = [
            jax.tree.leaves(state.opponent.memory.core) for state in (carry.actor_state, after)
        ]
        for before, now in zip(*memories, strict=True):
            moved = (before != now).reshape(8, -1).any(axis=1)
            np.testing.assert_array_equal(moved, waiting)
        chex.assert_trees_all_equal(after.player, carry.actor_state.player)
    finally:
        close(ring)


def test_players_split_over_learner_devices_as_their_agent_says():
    ring = make_ring(config_of("--devices", "auto"), devices=jax.devices()[:3])
    try:
        state = act(ring).unroll.initial_state
    finally:
        close(ring)
    assert isinstance(state, SelfPlayState)
    chex.assert_trees_all_equal_structs(state.player, state.opponent)


def test_steps_from_python_have_no_networks_to_move_with():
    with pytest.raises(ConfigError, match=r"actor.cycle: expected auto or fused, got stepped"):
        make_ring(config_of("--actor.cycle", "stepped"))


def test_complete_episodes_are_refused():
    with pytest.raises(ConfigError, match=r"actor.rollout: expected steps, got episodes"):
        make_ring(config_of("--actor.rollout", "episodes"))


@pytest.mark.parametrize("opponent", [pytest.param("self", marks=pytest.mark.slow), "past"])
def test_a_loaded_policy_is_the_players(tmp_path, opponent):
    config = dataclasses.replace(config_of(opponent=opponent), run_dir=str(tmp_path / "run"))
    assert training.train_to_exit_code(config) == 0
    policy = sebulba.load_policy(config.run_dir)
    assert isinstance(policy.stored.agent, ActorCriticAgent)
    assert 0 <= exploitability(bets_of(policy.stored.agent, policy.stored.networks)) < 1
    result = sebulba.evaluate(policy, episodes=20)
    assert result.protocol["settings"]["opponent"] == "random"
    # Settings of a pool that the other opponent does not have are left out.
    other = {"opponent": "random"}
    assert len(sebulba.evaluate(policy, episodes=8, env_options=other).returns) == 8
    loaded = sebulba.load_policy(config.run_dir, env_options=other).stored.networks
    chex.assert_trees_all_equal(loaded, policy.stored.networks)


@pytest.mark.slow
@pytest.mark.parametrize("opponent", ["self", "past"])
def test_self_play_comes_near_the_equilibrium_of_kuhn_poker(opponent):
    flags = ["--seed", "1", "--env.options.opponent", opponent]
    ring, _, _ = run_config(load_config("configs/ppo_kuhn_poker.yaml", flags))
    networks = ring.learner.networks_on(ring.actors[0].device)
    agent, networks = player_of(ring.programs.agent, networks)
    assert exploitability(bets_of(agent, networks)) < 0.1  # 0.458 of uniform play
