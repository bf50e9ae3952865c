"""A trained policy as a function."""

import dataclasses
import subprocess
import sys

import jax
import numpy as np
import pytest

import sebulba
from sebulba.evaluation.policy import Policy
from sebulba.pytree import without_key
from sebulba.types import EnvStep
from tests.extras import needs_search


def row(observation, reward, is_first):
    flags = np.zeros(len(reward), bool)
    return EnvStep(
        observation=observation,
        reward=reward,
        terminated=flags,
        truncated=flags,
        is_first=is_first,
    )


def observations(policy, *shape):
    spec = policy.stored.environment.observation
    return np.random.default_rng(0).random((*shape, *spec.shape)).astype(spec.dtype)


@pytest.mark.parametrize(
    "name",
    [
        "impala",
        pytest.param("r2d2", marks=pytest.mark.slow),
        pytest.param("gumbel_muzero", marks=[pytest.mark.slow, needs_search]),
    ],
)
def test_policy_acts_as_the_agent_does(policy_of, name):
    policy = policy_of(name)
    agent, networks = policy.stored.agent, policy.stored.networks
    sequence = observations(policy, 6, 3)
    state = policy.initial_state(3)
    actor_state = state.actor_state
    act = jax.jit(lambda *args: agent.act(*args, greedy=True))
    for t, observation in enumerate(sequence):
        reward = np.full(3, t, np.float32)
        # The second environment starts an episode at the fourth observation.
        is_first = np.array([t == 0, t in (0, 3), t == 0])
        action, state = policy(observation, state, reward=reward, is_first=is_first)
        expected, _, actor_state = act(networks, actor_state, row(observation, reward, is_first))
        np.testing.assert_array_equal(action, expected)
    jax.tree.map(np.testing.assert_array_equal, _data(state.actor_state), _data(actor_state))


def _data(tree):
    return jax.tree.map(without_key, tree)


def test_one_observation_equals_a_batch_of_one(policy_of):
    policy = policy_of("r2d2")
    state = single_state = None
    for observation in observations(policy, 4):
        action, state = policy(observation[None], state)
        single, single_state = policy(observation, single_state)
        assert action.shape == (1,)
        assert single.shape == ()
        assert single == action[0]


def test_a_state_of_none_starts_an_episode(policy_of):
    policy = policy_of("r2d2")
    first, second = observations(policy, 2)
    _, after_first = policy(first)
    _, started = policy(second)
    _, continued = policy(second, after_first)
    _, restarted = policy(second, after_first, is_first=True)
    lstm = [state.actor_state.memory.lstm for state in (started, restarted, continued)]
    leaves = [jax.tree.leaves(each)[0] for each in lstm]
    np.testing.assert_array_equal(leaves[0], leaves[1])
    assert not np.array_equal(leaves[0], leaves[2])


@pytest.mark.slow
def test_actions_are_in_native_units(policy_of):
    policy = policy_of("sac")
    batch = observations(policy, 5)
    agent, networks = policy.stored.agent, policy.stored.networks
    step = row(batch, np.zeros(5, np.float32), np.ones(5, bool))
    expected, _, _ = agent.act(networks, policy.initial_state(5).actor_state, step, greedy=True)
    action, _ = policy(batch)
    assert action.dtype == np.float32
    # The task acts in [0, 4], the agent in [-1, 1].
    np.testing.assert_allclose(action, 2 + 2 * np.asarray(expected), rtol=1e-6)


def test_samples_depend_on_the_seed(run_of):
    path = run_of("sac")
    policies = [sebulba.load_policy(path, greedy=False, seed=seed) for seed in (1, 1, 2)]
    batch = observations(policies[0], 5)
    first, same, other = (policy(batch)[0] for policy in policies)
    np.testing.assert_array_equal(first, same)
    assert not np.array_equal(first, other)


def test_every_start_of_episodes_draws_other_samples(run_of):
    first, again = (sebulba.load_policy(run_of("sac"), greedy=False, seed=1) for _ in range(2))
    batch = observations(first, 5)
    drawn = [first(batch)[0] for _ in range(3)]
    assert len({each.tobytes() for each in drawn}) == 3
    np.testing.assert_array_equal(drawn, [again(batch)[0] for _ in range(3)])


def test_arguments_that_do_not_fit_are_refused_by_name(policy_of):
    policy = policy_of("impala")
    batch = observations(policy, 3)
    with pytest.raises(
        ValueError, match=r"observation: expected float32\[50\], got float32\[3,10\]"
    ):
        policy(batch[:, :10])
    with pytest.raises(
        ValueError, match=r"observation: expected float32\[50\], got image: float32\[3"
    ):
        policy({"image": batch})
    with pytest.raises(ValueError, match=r"state: expected that of 3 environments"):
        policy(batch, policy.initial_state(2))
    with pytest.raises(ValueError, match=r"state: expected None or what .* returned, got 0\.5"):
        policy(batch, 0.5)
    with pytest.raises(ValueError, match=r"reward: expected \[\] or \[3\], got \[2\]"):
        policy(batch, reward=[0.0, 1.0])
    with pytest.raises(ValueError, match="complex64"):
        policy(batch.astype(np.complex64))


def test_integers_that_the_observation_cannot_hold_are_refused(policy_of):
    stored = policy_of("impala").stored
    observation = jax.ShapeDtypeStruct(stored.environment.observation.shape, np.int16)
    environment = dataclasses.replace(stored.environment, observation=observation)
    stored = dataclasses.replace(stored, environment=environment)
    policy = Policy(stored, greedy=True, seed=0)
    policy(np.full(observation.shape, -1))
    with pytest.raises(ValueError, match="observation: expected integers of int16, got 70000"):
        policy(np.full(observation.shape, 70_000))


def test_two_checkpoints_are_one_too_many(run_of):
    path = f"{run_of('impala')}@best"
    with pytest.raises(sebulba.ConfigError, match=r"checkpoint: expected none, as .*@best names"):
        sebulba.load_policy(path, checkpoint=1)


def test_no_thread_is_started(run_of, no_thread_is_left):
    policy = sebulba.load_policy(run_of("impala"))
    policy(observations(policy, 1))


def test_importing_the_package_imports_no_jax():
    check = "import sys, sebulba; assert 'jax' not in sys.modules; assert callable(sebulba.{})"
    subprocess.run([sys.executable, "-c", check.format("load_policy")], check=True, timeout=120)
