"""The random agent: uniform over any bounded action space, and never an update."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sebulba.agent_check import validate_agent
from sebulba.config.loading import load_config
from sebulba.errors import ConfigError
from sebulba.types import EnvironmentSpec
from sebulba_agents.config import RandomConfig
from sebulba_agents.random import RandomAgent
from tests.on_policy import OBSERVATION, make_run_spec
from tests.rings import run_config
from tests.streams import random_env_steps

NUM_ENVS = 4000


def make_agent(action_space):
    environment = EnvironmentSpec(
        observation=jax.ShapeDtypeStruct(OBSERVATION, jnp.float32), action_space=action_space
    )
    run_spec = make_run_spec(environment=environment)
    agent = RandomAgent(RandomConfig(), run_spec)
    validate_agent(agent, run_spec)
    return agent


def draw(action_space):
    """Return the actions of two consecutive steps, `[NUM_ENVS, ...]` each."""
    agent = make_agent(action_space)
    rows = random_env_steps(0, 0, NUM_ENVS, OBSERVATION)
    env_step = jax.tree.map(lambda x: x[0], rows)
    state = agent.init_actor_state((), NUM_ENVS, jax.random.key(0), 0)
    first, _, state = agent.act((), state, env_step, greedy=False)
    second, _, _ = agent.act((), state, env_step, greedy=False)
    return np.asarray(first), np.asarray(second)


@pytest.mark.parametrize(
    ("action_space", "start", "size"),
    [
        (gymnasium.spaces.Discrete(3, dtype=np.int32), [0], [3]),
        (gymnasium.spaces.Discrete(3, start=-1, dtype=np.int32), [-1], [3]),
        (gymnasium.spaces.MultiDiscrete([2, 4], start=[0, 5], dtype=np.int32), [0, 5], [2, 4]),
    ],
)
def test_discrete_actions_are_each_as_frequent(action_space, start, size):
    first, second = draw(action_space)
    assert (first != second).any()
    for column, low, count in zip(first.reshape(NUM_ENVS, -1).T, start, size, strict=True):
        values, counts = np.unique(column, return_counts=True)
        np.testing.assert_array_equal(values, np.arange(low, low + count))
        np.testing.assert_allclose(counts / NUM_ENVS, 1 / count, atol=0.03)


def test_continuous_actions_fill_the_box():
    low, high = np.array([-1.0, 0.0], np.float32), np.array([1.0, 5.0], np.float32)
    first, second = draw(gymnasium.spaces.Box(low, high, dtype=np.float32))
    assert (first != second).any()
    assert (first >= low).all() and (first <= high).all()
    np.testing.assert_allclose(first.mean(axis=0), (low + high) / 2, atol=0.1)
    np.testing.assert_allclose(first.std(axis=0), (high - low) / 12**0.5, atol=0.1)


def test_an_unbounded_action_space_is_refused():
    with pytest.raises(ConfigError, match=r"env\.id: random expects .* bounded Box .* got Box"):
        make_agent(gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32))


def test_there_is_never_an_update():
    agent = make_agent(gymnasium.spaces.Discrete(3, dtype=np.int32))
    assert [agent.num_updates_per_cycle(cycle) for cycle in (0, 1, 1000)] == [0, 0, 0]


def test_an_agent_without_networks_runs_on_several_learner_devices():
    settings = {"run.total_env_steps": 2_000, "devices.learner": [0, 1]}
    ring, _, _ = run_config(load_config("random_cartpole", settings))
    assert len(ring.learner.learner_devices) == 2
    assert jax.tree.leaves(ring.learner.state.networks) == []
