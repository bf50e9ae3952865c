"""Forward mode and Hessian-vector products through the networks and losses of every agent."""

import contextlib
import importlib.util

import chex
import flax.linen as nn
import gymnasium
import jax
import jax.flatten_util
import jax.numpy as jnp
import jax.scipy.sparse.linalg
import numpy as np
import pytest

from sebulba.config import EnvConfig
from sebulba.config.agents import agent_config_class, agent_factory
from sebulba.envs import make_environment
from sebulba.toolkit.policy_heads import CategoricalHead
from sebulba.toolkit.reductions import masked_mean, masked_moments
from sebulba.toolkit.returns import gae
from sebulba.toolkit.torsos import MLPTorso, fold_time
from sebulba.types import Clock, EnvironmentSpec, Trajectory
from tests.compiled import jitted
from tests.streams import random_env_steps
from tests.toys import toy_run_spec

LENGTH, NUM_ENVS = 6, 4
REPLAY = {"batch_size": 8, "replay_capacity": 64, "min_replay_rows": 16, "replay_ratio": 1.0}
SETTINGS = {
    "a2c": {},
    "impala": {"lstm_size": 5},
    "policy_gradient": {},
    "ppo": {"num_minibatches": 2},
    "pqn": {"num_minibatches": 2},
    "skills": {},
    "ddqn": REPLAY,
    "rainbow": REPLAY | {"dueling_size": 4, "num_atoms": 5},
    "sac": REPLAY,
    "r2d2": REPLAY
    | {"lstm_size": 5, "dueling_size": 4, "learn_length": 3, "burn_in": 1, "n_step": 2},
    "gumbel_muzero": REPLAY
    | {
        "latent_size": 6,
        "model_sizes": (6,),
        "num_simulations": 2,
        "num_bins": 11,
        "unroll_length": 2,
        "n_step": 1,
    },
}
SLOW = ("gumbel_muzero", "r2d2", "rainbow", "sac")  # to compile
SLOW += ("a2c", "ppo", "policy_gradient", "pqn", "skills")  # whose layers are those of the others


def loss_of(name):
    """Return an agent's loss as a function of its networks alone, and the networks."""
    actions = gymnasium.spaces.Discrete(3)
    if name == "sac":
        actions = gymnasium.spaces.Box(-1.0, 1.0, (2,))
    run_spec = toy_run_spec(
        environment=EnvironmentSpec(
            observation=jax.ShapeDtypeStruct((3,), jnp.float32), action_space=actions
        ),
        num_envs=NUM_ENVS,
        num_actors=1,
        trajectory_length=LENGTH,
        total_env_steps=10_000,
    )
    config = agent_config_class(name)(name=name, hidden_sizes=(8,), **SETTINGS[name])
    agent = agent_factory(name)(config, run_spec)
    networks = jitted(agent.init_networks)(jax.random.key(0))
    acting = agent.actor_networks(networks)
    experience = agent.init_experience(networks, NUM_ENVS)
    state = agent.init_actor_state(acting, NUM_ENVS, jax.random.key(1), 0)
    act, update = jitted(agent.act, static_argnames="greedy"), jitted(agent.update_experience)
    rows = random_env_steps(0, 4 * LENGTH, NUM_ENVS)
    for first in range(0, 4 * LENGTH, LENGTH):
        env_steps = jax.tree.map(lambda x, n=first: jnp.asarray(x[n : n + LENGTH + 1]), rows)
        initial, chosen = state, []
        for t in range(LENGTH):
            row = jax.tree.map(lambda x, t=t: x[t], env_steps)
            action, extras, state = act(acting, state, row, greedy=False)
            chosen.append((action, extras))
        action, extras = jax.tree.map(lambda *x: jnp.stack(x), *chosen)
        trajectory = Trajectory(env_steps=env_steps, action=action, extras=extras)
        experience = update(networks, experience, initial, state, trajectory, jnp.int32(0))
    clock = Clock.at(0, env_steps=4 * LENGTH * NUM_ENVS)
    return lambda networks: agent.loss(networks, experience, jax.random.key(2), clock)[0], networks


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in SETTINGS]
)
def test_hessian_vector_products_of_a_loss_are_those_of_either_order(name):
    if name == "gumbel_muzero" and importlib.util.find_spec("mctx") is None:
        pytest.skip("needs the extra search")
    loss, networks = loss_of(name)

    @jax.jit
    def compute(networks):
        leaves, structure = jax.tree.flatten(networks)
        keys = jax.random.split(jax.random.key(3), len(leaves))
        direction = structure.unflatten(
            [jax.random.normal(key, leaf.shape) for key, leaf in zip(keys, leaves, strict=True)]
        )

        def slope(networks):
            return jax.jvp(loss, (networks,), (direction,))[1]

        gradient, product = jax.jvp(jax.grad(loss), (networks,), (direction,))
        along = sum(map(jnp.vdot, jax.tree.leaves(gradient), jax.tree.leaves(direction)))
        forward, other = jax.value_and_grad(slope)(networks)
        return forward, along, product, other

    slope, along, product, other = compute(networks)
    np.testing.assert_allclose(slope, along, rtol=1e-3, atol=1e-4)
    size = max(np.abs(leaf).max() for leaf in jax.tree.leaves(product))
    assert size > 0.0
    chex.assert_trees_all_close(product, other, rtol=1e-3, atol=1e-4 * size)


def cartpole_rows(act, *, num_envs, length):
    """Return `[T + 1, B]` rows of CartPole, and the actions `[T, B]`."""
    config = EnvConfig(suite="gymnasium", id="CartPole-v1")
    with contextlib.closing(make_environment(config, num_envs=num_envs, seed=0)) as environment:
        row, rows, actions = environment.reset(), [], []
        for number in range(length):
            action = np.asarray(act(row.observation, jax.random.key(number)))
            rows.append(row)
            actions.append(action)
            row = environment.step(action)
        rows.append(row)
    return jax.tree.map(lambda *x: jnp.asarray(np.stack(x)), *rows), jnp.asarray(np.stack(actions))


def test_a_trust_region_step_by_conjugate_gradients_improves_cartpole_at_the_stated_divergence():
    """Schulman et al. 2015, TRPO (arXiv 1502.05477), appendix C, with the toolkit's parts."""

    class Policy(nn.Module):
        @nn.compact
        def __call__(self, observation):
            return CategoricalHead(2)(fold_time(MLPTorso((8,)), observation))

    network, divergence = Policy(), 1e-3
    params = network.init(jax.random.key(0), jnp.zeros((1, 1, 4)))
    flat, unflatten = jax.flatten_util.ravel_pytree(params)

    def policy(flat, observation):
        return network.apply(unflatten(flat), observation)

    act = jax.jit(lambda observation, key: policy(flat, observation[None]).sample(key)[0])
    rows, actions = cartpole_rows(act, num_envs=8, length=64)

    @jax.jit
    def step(flat):
        observations = rows.observation[:-1]
        valid = ~rows.done[:-1]
        old = policy(flat, observations)
        advantages = gae(
            rewards=rows.reward[1:],
            discounts=jnp.where(rows.terminated[1:], 0.0, 0.99),
            valid=valid,
            values=jnp.zeros(rows.reward.shape),
            lambda_=1.0,
        )
        mean, std = masked_moments(advantages, valid)
        advantages = (advantages - mean) / std

        def surrogate(flat):
            ratio = jnp.exp(policy(flat, observations).log_prob(actions) - old.log_prob(actions))
            return masked_mean(ratio * advantages, valid)

        def kl(other):
            return masked_mean(policy(flat, observations).kl(policy(other, observations)), valid)

        def fisher(direction):
            damping = 1e-3 * direction
            return jax.jvp(jax.grad(kl), (flat,), (direction,))[1] + damping

        gradient = jax.grad(surrogate)(flat)
        direction, _ = jax.scipy.sparse.linalg.cg(fisher, gradient, tol=1e-6, maxiter=60)
        size = jnp.sqrt(2.0 * divergence / jnp.vdot(direction, fisher(direction)))
        after = flat + size * direction
        matrix = jax.hessian(kl)(flat) + 1e-3 * jnp.eye(flat.size)
        expected = jnp.linalg.solve(matrix, gradient)
        return direction, expected, kl(after), surrogate(after) - surrogate(flat)

    direction, expected, moved, gain = step(flat)
    np.testing.assert_allclose(direction, expected, rtol=0.02, atol=0.02 * np.abs(expected).max())
    assert 0.7 * divergence < moved < 1.3 * divergence  # of second order, less the damping's share
    assert gain > 0.0
