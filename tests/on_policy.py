"""Runs, trajectories and losses of small on-policy agents, for their tests."""

import dataclasses
import functools

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from sebulba.types import Clock, EnvironmentSpec, Trajectory
from tests.compiled import jitted, jitted_gradient
from tests.streams import random_env_steps
from tests.toys import toy_run_spec

LENGTH, NUM_ENVS, NUM_ACTIONS, OBSERVATION = 7, 8, 3, (4,)


def make_run_spec(**changes):
    run_spec = toy_run_spec(
        environment=EnvironmentSpec(
            observation=jax.ShapeDtypeStruct(OBSERVATION, jnp.float32),
            action_space=gymnasium.spaces.Discrete(NUM_ACTIONS),
        ),
        num_envs=NUM_ENVS,
        num_actors=1,
        trajectory_length=LENGTH,
    )
    return dataclasses.replace(run_spec, **changes)


def make_networks(agent, seed=0):
    """Return parameters whose policy is not near uniform, as it is at the start."""
    networks = jitted(agent.init_networks)(jax.random.key(seed))
    (layer,) = networks.params["params"]["policy"].keys() - {"log_std"}
    networks.params["params"]["policy"][layer]["kernel"] *= 100.0
    return networks


def make_stream(seed=0, **kwargs):
    return random_env_steps(seed, LENGTH, NUM_ENVS, OBSERVATION, **kwargs)


def truncated_after(row):
    """Return one environment's stream that is truncated at `row`."""
    stream = random_env_steps(0, LENGTH, 1, OBSERVATION, done_probability=0.0)
    truncated, is_first = np.zeros((2, LENGTH + 1, 1), bool)
    truncated[row] = is_first[row + 1] = True
    return dataclasses.replace(stream, truncated=truncated, is_first=is_first)


def act_along_stream(agent, networks, env_steps, *, greedy=False):
    """Act along a given stream; return the initial state and the trajectory."""
    num_envs = env_steps.reward.shape[1]
    state = agent.init_actor_state(networks, num_envs, jax.random.key(1), 0)

    def other(leaf):
        return leaf + (0.5 if jnp.issubdtype(leaf.dtype, jnp.floating) else 1)

    # A memory as after earlier trajectories.
    memory = dataclasses.replace(
        state.memory,
        core=jax.tree.map(other, state.memory.core),
        last_action=state.memory.last_action + 2,
    )
    state = initial = dataclasses.replace(state, memory=memory)
    act = jitted(agent.act, static_argnames="greedy")
    actions, extras = [], []
    for t in range(env_steps.reward.shape[0] - 1):
        row = jax.tree.map(lambda x, t=t: x[t], env_steps)
        action, extra, state = act(networks, state, row, greedy=greedy)
        actions.append(action)
        extras.append(extra)
    action, extras = jax.tree.map(lambda *x: np.stack(x), *zip(actions, extras, strict=True))
    trajectory = Trajectory(env_steps=env_steps, action=action, extras=extras)
    return initial, to_device(trajectory)


def add_trajectory(agent, networks, initial, trajectory):
    """Return the experience of a learner whose networks these are, after one trajectory."""
    num_envs = trajectory.env_steps.reward.shape[1]
    experience = init_experience(agent, num_envs)(networks)
    update = jitted(agent.update_experience)
    return update(networks, experience, initial, initial, trajectory, np.int32(0))


@functools.cache
def init_experience(agent, num_envs):
    return jax.jit(lambda networks: agent.init_experience(networks, num_envs))


def make_experience(agent, networks, env_steps=None):
    """Return experience collected and learned from with the same networks."""
    initial, trajectory = act_along_stream(agent, networks, env_steps or make_stream())
    return add_trajectory(agent, networks, initial, trajectory)


def evaluate(agent, networks, experience, step=0):
    """Return loss, metrics and gradient."""
    loss = jitted_gradient(agent.loss)
    (value, (_, metrics)), grads = loss(networks, experience, jax.random.key(0), Clock.at(step))
    return value, metrics, grads


def to_device(tree):
    return jax.tree.map(jnp.asarray, tree)
