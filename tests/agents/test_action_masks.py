"""Action masks: no agent takes an illegal action, or learns anything about one."""

import dataclasses
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sebulba
from sebulba.agent_check import validate_agent
from sebulba.config.loading import load_config
from sebulba.run import training
from sebulba.types import Trajectory
from sebulba_agents.config import ImpalaConfig, PQNConfig, RandomConfig
from sebulba_agents.ddqn import DDQN
from sebulba_agents.impala import make_impala
from sebulba_agents.pqn import q_lambda_targets
from sebulba_agents.random import RandomAgent
from sebulba_agents.replay_config import DDQNConfig
from tests.compiled import jitted
from tests.extras import needs_search
from tests.on_policy import (
    NUM_ACTIONS,
    act_along_stream,
    add_trajectory,
    evaluate,
    make_networks,
    make_run_spec,
    make_stream,
)

ILLEGAL = 2  # in every row
MASK = jax.ShapeDtypeStruct((NUM_ACTIONS,), bool)


def masked_run_spec(**changes):
    run_spec = make_run_spec(**changes)
    environment = dataclasses.replace(run_spec.environment, action_mask=MASK)
    return dataclasses.replace(run_spec, environment=environment)


def masked_stream():
    """A stream with random masks, in which `ILLEGAL` never is legal, and 0 or 1 always."""
    stream = make_stream()
    mask = np.random.default_rng(0).random((*stream.reward.shape, NUM_ACTIONS)) < 0.5
    mask[..., ILLEGAL], mask[..., 0] = False, mask[..., 0] | ~mask[..., 1]
    return dataclasses.replace(stream, action_mask=mask)


def is_legal(stream, action):
    mask = stream.action_mask[:-1]
    return np.take_along_axis(mask, np.asarray(action)[..., None], axis=-1)


@pytest.mark.parametrize("greedy", [False, True])
def test_an_actor_critic_acts_legally_and_has_no_gradient_of_illegal_logits(greedy):
    agent = make_impala(ImpalaConfig(hidden_sizes=(8,), entropy_cost=0.1), masked_run_spec())
    validate_agent(agent, masked_run_spec())
    networks, stream = make_networks(agent), masked_stream()
    initial, trajectory = act_along_stream(agent, networks, stream, greedy=greedy)
    assert is_legal(stream, trajectory.action).all()
    if greedy:
        return
    experience = add_trajectory(agent, networks, initial, trajectory)
    value, _, grads = evaluate(agent, networks, experience)
    gradient = grads.params["params"]["policy"]["logits"]["kernel"]
    assert np.isfinite(value) and all(np.isfinite(x).all() for x in jax.tree.leaves(grads))
    assert not gradient[:, ILLEGAL].any() and gradient[:, 0].any() and gradient[:, 1].any()


def test_a_q_learner_acts_legally_and_bootstraps_from_legal_actions():
    config = DDQNConfig(hidden_sizes=(8,), dueling_size=None, epsilon=0.5)
    agent = DDQN(config, masked_run_spec(total_env_steps=10_000))
    networks = jitted(agent.init_networks)(jax.random.key(0))
    head = networks.online["params"]["Dense_0"]
    # An illegal action would have the greatest Q by far.
    head["bias"] = head["bias"].at[ILLEGAL].set(100.0)
    stream = masked_stream()
    state = agent.init_actor_state(networks.online, stream.reward.shape[1], jax.random.key(1), 0)
    rows = jax.tree.map(lambda x: jnp.asarray(x[:-1]), stream)

    def act(state, row):
        action, _, state = agent.act(networks.online, state, row, greedy=False)
        return state, action

    _, action = jax.jit(lambda: jax.lax.scan(act, state, rows))()
    assert is_legal(stream, action).all()
    assert len(np.unique(action)) == 2


def test_q_lambda_targets_take_the_maximum_over_legal_actions():
    stream = masked_stream()
    q = np.random.default_rng(1).normal(size=stream.action_mask.shape).astype(np.float32)
    agent = RandomAgent(RandomConfig(), masked_run_spec())
    action, _, _ = jax.vmap(
        lambda row, key: agent.act((), key, row, greedy=False), in_axes=(0, None)
    )(jax.tree.map(lambda x: jnp.asarray(x[:-1]), stream), jax.random.key(0))
    assert is_legal(stream, action).all()
    trajectory = Trajectory(env_steps=jax.tree.map(jnp.asarray, stream), action=action, extras=())
    targets = [
        q_lambda_targets(jnp.asarray(each), trajectory, PQNConfig())
        for each in (q, np.where(stream.action_mask, q, 100.0), np.where(stream.action_mask, q, -9))
    ]
    np.testing.assert_array_equal(targets[0], targets[1])
    np.testing.assert_array_equal(targets[0], targets[2])


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        *("impala", "ppo", "a2c", "policy_gradient", "ddqn", "rainbow", "r2d2", "pqn"),
        *("random", "skills"),
        pytest.param("gumbel_muzero", marks=needs_search),
    ],
)
def test_no_agent_takes_an_illegal_action_in_a_run(name, tmp_path):
    """Legal actions of the task pay 1 each, so that the return of legal play is its length."""
    overrides = {
        "env": {"suite": "jax", "id": "tests.envs.masked:MaskedTask"},
        "agent": {"name": name},
        "devices": {"actor": [0], "learner": [0]},
        "actor": {"num_envs": 8, "threads_per_device": 1, "trajectory_length": 16},
        "run": {"total_env_steps": 20_000, "log_interval_env_steps": 2_000, "mode": "serial"},
        "run_dir": str(tmp_path / "run"),
    }
    config = load_config(None, overrides)
    assert training.train_to_exit_code(config) == 0
    text = (pathlib.Path(config.run_dir) / "metrics.jsonl").read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    played = [row for row in rows if row["episode_return_mean"] is not None]
    assert len(played) > 3
    for row in played:
        assert row["episode_return_mean"] == row["episode_length_mean"]
    policy = sebulba.load_policy(config.run_dir)
    mask = np.array([False, False, True])
    action, _ = policy(np.zeros(7, np.float32), action_mask=mask)
    assert action == 2
    with pytest.raises(ValueError, match=r"action_mask: expected"):
        policy(np.zeros(7, np.float32))
