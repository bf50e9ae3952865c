"""Replay across a stream boundary: environments were recreated between two trajectories."""

import dataclasses
import functools

import chex
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sebulba.config.agents import agent_factory
from sebulba.types import Clock, EnvironmentSpec, Trajectory
from sebulba_agents.ddqn import DDQN
from sebulba_agents.r2d2 import R2D2
from sebulba_agents.rainbow import make_rainbow
from sebulba_agents.replay_config import (
    DDQNConfig,
    GumbelMuZeroConfig,
    R2D2Config,
    RainbowConfig,
    SACConfig,
)
from sebulba_agents.sac import SAC
from tests.compiled import jitted, jitted_gradient
from tests.extras import needs_search
from tests.streams import random_env_steps
from tests.toys import toy_run_spec

LENGTH, NUM_ENVS, NUM_TRAJECTORIES = 4, 4, 6
BOUNDARY = 3 * LENGTH  # the row of the reset
SIZES = {"batch_size": 64, "replay_capacity": NUM_ENVS * 32, "min_replay_rows": 32}
DISCRETE = gymnasium.spaces.Discrete(3)
CONTINUOUS = gymnasium.spaces.Box(-1.0, 1.0, (2,))
AGENTS = {
    "ddqn": (
        DDQN,
        DDQNConfig(hidden_sizes=(8,), n_step=3, priority_exponent=0.6, **SIZES),
        DISCRETE,
    ),
    "rainbow": (
        make_rainbow,
        RainbowConfig(hidden_sizes=(8,), dueling_size=8, num_atoms=5, **SIZES),
        DISCRETE,
    ),
    "sac": (SAC, SACConfig(hidden_sizes=(8,), **SIZES), CONTINUOUS),
    "r2d2": (
        R2D2,
        R2D2Config(
            hidden_sizes=(8,),
            lstm_size=8,
            dueling_size=8,
            burn_in=LENGTH,
            learn_length=LENGTH,
            n_step=3,
            **SIZES,
        ),
        DISCRETE,
    ),
    "gumbel_muzero": (
        # Imported when it is used: it needs the extra `search`.
        lambda *args: agent_factory("gumbel_muzero")(*args),
        GumbelMuZeroConfig(
            hidden_sizes=(8,),
            latent_size=8,
            model_sizes=(8,),
            num_simulations=2,
            unroll_length=2,
            n_step=2,
            priority_exponent=0.6,
            reanalyse_fraction=0.5,
            **SIZES,
        ),
        DISCRETE,
    ),
}


def make_agent(name):
    build, config, action_space = AGENTS[name]
    run_spec = toy_run_spec(
        environment=EnvironmentSpec(
            observation=jax.ShapeDtypeStruct((3,), jnp.float32), action_space=action_space
        ),
        num_envs=NUM_ENVS,
        num_actors=1,
        trajectory_length=LENGTH,
        total_env_steps=10_000,
    )
    return build(config, run_spec)


def stream_with_boundary():
    """Rows in which all environments are reset at `BOUNDARY`, half of them in mid-episode."""
    env_steps = random_env_steps(0, NUM_TRAJECTORIES * LENGTH, NUM_ENVS)
    leaves = {
        name: getattr(env_steps, name).copy()
        for name in ("terminated", "truncated", "is_first", "reward")
    }
    in_mid_episode = np.arange(NUM_ENVS) < NUM_ENVS // 2
    leaves["terminated"][BOUNDARY - 1] = ~in_mid_episode
    leaves["truncated"][BOUNDARY - 1] = False
    leaves["is_first"][BOUNDARY] = True
    leaves["reward"][BOUNDARY] = 0.0
    return dataclasses.replace(env_steps, **leaves), in_mid_episode


def act_along(agent, networks, env_steps):
    """Return the trajectories of the stream, each with the actor states before and after it."""
    online = agent.actor_networks(networks)
    act = jax.jit(lambda state, row: agent.act(online, state, row, greedy=False))
    state, lived = agent.init_actor_state(online, NUM_ENVS, jax.random.key(1), 0), []
    for begin in range(0, NUM_TRAJECTORIES * LENGTH, LENGTH):
        initial, chosen = state, []
        for t in range(begin, begin + LENGTH):
            *choice, state = act(state, jax.tree.map(lambda x: x[t], env_steps))  # noqa: B023
            chosen.append(choice)
        action, extras = jax.tree.map(lambda *x: jnp.stack(x), *chosen)
        rows = jax.tree.map(lambda x: jnp.asarray(x[begin : begin + LENGTH + 1]), env_steps)  # noqa: B023
        trajectory = Trajectory(env_steps=rows, action=action, extras=extras)
        lived.append((initial, state, trajectory))
    return lived


def learn(agent, networks, lived):
    """Return the loss, its gradient and the replay's masses after all trajectories."""
    update = jitted(agent.update_experience)
    experience = agent.init_experience(networks, NUM_ENVS)
    for initial, final, trajectory in lived:
        experience = update(networks, experience, initial, final, trajectory, jnp.int32(0))
    stored = experience.mass
    loss = jitted_gradient(agent.loss)
    (value, (experience, _)), grads = loss(networks, experience, jax.random.key(2), Clock.at())
    return {"loss": value, "grads": grads, "stored": stored, "learned": experience.mass}


@functools.cache
def lived_and_learned(name):
    """Return agent, networks, trajectories across a boundary, and what was learned from them."""
    env_steps, _ = stream_with_boundary()
    agent = make_agent(name)
    networks = jitted(agent.init_networks)(jax.random.key(0))
    lived = act_along(agent, networks, env_steps)
    return agent, networks, lived, learn(agent, networks, lived)


@pytest.mark.parametrize(
    "name",
    [
        "ddqn",
        "r2d2",
        pytest.param("rainbow", marks=pytest.mark.slow),
        pytest.param("sac", marks=pytest.mark.slow),
        pytest.param("gumbel_muzero", marks=[pytest.mark.slow, needs_search]),
    ],
)
def test_boundary_is_learned_from_as_a_truncation_at_the_row_before_it(name):
    _, in_mid_episode = stream_with_boundary()
    agent, networks, lived, learned = lived_and_learned(name)
    initial, final, before = lived[BOUNDARY // LENGTH - 1]
    truncated = before.env_steps.truncated.at[LENGTH - 1].set(jnp.asarray(in_mid_episode))
    told = dataclasses.replace(
        before, env_steps=dataclasses.replace(before.env_steps, truncated=truncated)
    )
    lived_as_told = [*lived]
    lived_as_told[BOUNDARY // LENGTH - 1] = (initial, final, told)
    chex.assert_trees_all_equal(learned, learn(agent, networks, lived_as_told))


@pytest.mark.parametrize("name", ["ddqn", "sac"])
def test_transition_across_a_boundary_is_never_drawn(name):
    env_steps, in_mid_episode = stream_with_boundary()
    stored = np.asarray(lived_and_learned(name)[-1]["stored"])
    np.testing.assert_array_equal(stored[:, BOUNDARY - 1], 0.0)
    assert (stored[in_mid_episode, BOUNDARY] > 0.0).any()
    valid = ~np.asarray(env_steps.done[: BOUNDARY - 1]).T
    np.testing.assert_array_equal(stored[:, : BOUNDARY - 1] > 0.0, valid)
