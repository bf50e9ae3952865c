"""Targets of an unrolled model against a slow reference, on random sequences."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from sebulba.types import EnvStep
from sebulba_agents.unroll_targets import unroll_targets
from tests.streams import random_env_steps

K, N_STEP, NUM_ACTIONS, GAMMA = 5, 3, 4, 0.9
ROWS = K + N_STEP + 1
NUM_SEQUENCES = 1000


def random_sequences(seed=0):
    """Return rows, actions, policies and values; some streams are cut without a final row."""
    env_steps = random_env_steps(seed, ROWS - 1, NUM_SEQUENCES, done_probability=0.15)
    rng = np.random.default_rng(seed + 1)
    cut = rng.integers(1, 4 * ROWS, NUM_SEQUENCES)
    is_first, reward = env_steps.is_first.copy(), env_steps.reward.copy()
    for b in np.flatnonzero(cut < ROWS):
        is_first[cut[b], b], reward[cut[b], b] = True, 0.0
    env_steps = dataclasses.replace(env_steps, is_first=is_first, reward=reward)
    action = rng.integers(NUM_ACTIONS, size=(ROWS, NUM_SEQUENCES)).astype(np.int32)
    policy = rng.dirichlet(np.ones(NUM_ACTIONS), (K + 1, NUM_SEQUENCES)).astype(np.float32)
    values = rng.normal(size=(ROWS, NUM_SEQUENCES)).astype(np.float32)
    return env_steps, action, policy, values


def slow_value(env_steps, values, k, b):
    """Return the n-step return from row k, reward by reward."""
    total, factor = 0.0, 1.0
    for t in range(k + 1, k + N_STEP + 1):
        total += factor * float(env_steps.reward[t, b])
        factor *= GAMMA
        if env_steps.terminated[t, b]:
            return total
        is_last = env_steps.truncated[t, b] or (t + 1 < ROWS and env_steps.is_first[t + 1, b])
        if is_last or t == k + N_STEP:
            return total + factor * float(values[t, b])


def slow_targets(env_steps, values, b):
    """Yield `(k, reward, value, has_policy)` of one sequence; None: no target."""
    is_over = is_unknown = False
    for k in range(K + 1):
        if is_over:
            yield k, 0.0, 0.0, False
            continue
        if is_unknown:
            yield k, None, None, False
            continue
        reward = float(env_steps.reward[k, b])
        if env_steps.terminated[k, b]:
            is_over = True
            yield k, reward, 0.0, False
        elif env_steps.truncated[k, b] or env_steps.is_first[k + 1, b]:
            is_unknown = True
            yield k, reward, None, False
        else:
            yield k, reward, slow_value(env_steps, values, k, b), True


def compute(env_steps, action, policy, values, seed=0):
    return jax.jit(unroll_targets, static_argnames=("discount", "n_step"))(
        jax.random.key(seed),
        jax.tree.map(jnp.asarray, env_steps),
        action=jnp.asarray(action),
        policy=jnp.asarray(policy),
        values=jnp.asarray(values),
        discount=GAMMA,
        n_step=N_STEP,
    )


def test_targets_equal_the_slow_reference_on_1000_sequences():
    env_steps, action, policy, values = random_sequences()
    targets = jax.tree.map(np.asarray, compute(env_steps, action, policy, values))
    np.testing.assert_array_equal(targets.policy, policy)
    seen = {"absorbed": 0, "unknown": 0, "known": 0}
    for b in range(NUM_SEQUENCES):
        for k, reward, value, has_policy in slow_targets(env_steps, values, b):
            seen["unknown" if value is None else "known" if has_policy else "absorbed"] += 1
            assert targets.policy_mask[k, b] == has_policy
            assert targets.value_mask[k, b] == (value is not None)
            if value is not None:
                np.testing.assert_allclose(targets.value[k, b], value, rtol=1e-4, atol=1e-5)
            if k > 0:
                assert targets.reward_mask[k - 1, b] == (reward is not None)
                if reward is not None:
                    np.testing.assert_allclose(targets.reward[k - 1, b], reward, rtol=1e-6)
            if has_policy and k < K:
                assert targets.action[k, b] == action[k, b]
    assert min(seen.values()) > 300


def test_nothing_of_another_episode_or_an_ignored_action_matters():
    env_steps, action, policy, values = random_sequences(seed=2)
    done = env_steps.terminated | env_steps.truncated
    ends = done[:-1] | env_steps.is_first[1:]
    is_other = np.concatenate([np.zeros_like(done[:1]), np.cumsum(ends, axis=0) > 0])
    rng = np.random.default_rng(3)
    noise = rng.normal(size=done.shape).astype(np.float32)
    changed = dataclasses.replace(env_steps, reward=np.where(is_other, noise, env_steps.reward))
    other_action = rng.integers(NUM_ACTIONS, size=action.shape).astype(np.int32)
    expected = compute(env_steps, action, policy, values)
    got = compute(
        changed,
        np.where(is_other | done, other_action, action),
        policy,
        np.where(is_other | env_steps.terminated, noise, values),
    )
    for name in ("action", "reward_mask", "value_mask", "policy_mask"):
        np.testing.assert_array_equal(getattr(got, name), getattr(expected, name))
    for name in ("reward", "value"):
        mask = np.asarray(getattr(expected, f"{name}_mask"))
        left, right = (np.asarray(getattr(each, name))[mask] for each in (got, expected))
        np.testing.assert_array_equal(left, right)


def test_actions_behind_the_end_are_random_and_legal():
    flags = np.zeros((ROWS, 400), bool)
    terminated = flags.copy()
    terminated[1] = True
    env_steps = EnvStep(
        observation=(),
        reward=np.zeros(flags.shape, np.float32),
        terminated=terminated,
        truncated=flags,
        is_first=np.roll(terminated, 1, axis=0),
    )
    policy = np.full((K + 1, 400, NUM_ACTIONS), 1 / NUM_ACTIONS, np.float32)
    zeros = np.zeros(flags.shape)
    targets = compute(env_steps, zeros.astype(np.int32), policy, zeros.astype(np.float32))
    np.testing.assert_array_equal(targets.action[0], 0)
    for k in range(1, K):
        frequencies = np.bincount(targets.action[k], minlength=NUM_ACTIONS) / 400
        assert len(frequencies) == NUM_ACTIONS and abs(frequencies - 0.25).max() < 0.1
