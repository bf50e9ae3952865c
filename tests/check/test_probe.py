"""The probe's stream keeps the contract, has every kind of row, and gives each row other values."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sebulba.check.episode_schedule import make_schedule
from sebulba.check.probe import action_code, make, probe_config
from sebulba.types import EnvironmentSpec

LENGTH, NUM_ENVS = 6, 4
SPEC = EnvironmentSpec(
    observation={
        "image": jax.ShapeDtypeStruct((2, 3), jnp.uint8),
        "number": jax.ShapeDtypeStruct((), jnp.float32),
        "flags": jax.ShapeDtypeStruct((4,), jnp.int32),
    },
    action_space=gymnasium.spaces.Discrete(3, dtype=np.int32),
)


@pytest.mark.parametrize(("num_envs", "length"), [(1, 4), (4, 6), (8, 20), (3, 1)])
def test_a_schedule_ends_each_episode_once_and_resets_after_it(num_envs, length):
    schedule = make_schedule(num_envs=num_envs, trajectory_length=length, seed=5)
    done = schedule.terminated | schedule.truncated
    assert not (schedule.terminated & schedule.truncated).any()
    assert not (done & schedule.is_first).any()
    # Also from the last row to the first of the next period.
    np.testing.assert_array_equal(np.roll(done, 1, axis=0), schedule.is_first)


def test_a_schedule_has_every_kind_of_row():
    schedule = make_schedule(num_envs=8, trajectory_length=8, seed=0)
    done = schedule.terminated | schedule.truncated
    assert schedule.terminated.any() and schedule.truncated.any()
    assert (done[1:] & schedule.is_first[:-1]).any()  # an episode of one step
    at_boundaries = schedule.truncated[8::8]
    assert at_boundaries.any(axis=1).all()
    resets = [np.flatnonzero(column) for column in schedule.is_first.T]
    assert max(np.diff(rows).max() for rows in resets) > 2 * 8


def roll_out(environment, num_rows, action):
    rows = [environment.reset()]
    rows += [environment.step(action) for _ in range(num_rows - 1)]
    return rows


def make_probe(seed=3):
    return make(probe_config(SPEC, LENGTH), num_envs=NUM_ENVS, seed=seed)


def test_stepped_and_fused_probes_give_the_same_rows():
    environment = make_probe()
    action = np.ones(NUM_ENVS, np.int32)
    rows = roll_out(environment, 4, action)
    environment.reset()
    fused = environment.fused()
    state, step = fused.state, jax.jit(fused.step)
    for row in rows[1:]:
        state, got = step(state, jnp.asarray(action))
        jax.tree.map(np.testing.assert_array_equal, got, row)


def test_a_probe_gives_each_row_and_environment_other_values():
    rows = roll_out(make_probe(), 5, np.zeros(NUM_ENVS, np.int32))
    numbers = np.stack([row.observation["number"] for row in rows])
    assert len(np.unique(numbers)) == numbers.size
    rewards = np.stack([row.reward for row in rows])
    is_first = np.stack([row.is_first for row in rows])
    assert not rewards[is_first].any()
    assert len(np.unique(rewards[~is_first])) == (~is_first).sum()


def test_a_reward_depends_on_the_action_that_led_to_it():
    probes = [make_probe() for _ in range(2)]
    for probe in probes:
        probe.reset()
    one, other = (
        probe.step(np.full(NUM_ENVS, action, np.int32))
        for probe, action in zip(probes, (0, 2), strict=True)
    )
    differs = one.reward != other.reward
    np.testing.assert_array_equal(differs, ~one.is_first)


@pytest.mark.parametrize(
    ("space", "least", "most"),
    [
        (gymnasium.spaces.Discrete(4, start=2, dtype=np.int32), 2, 5),
        (gymnasium.spaces.MultiDiscrete([3, 3], dtype=np.int32), [0, 0], [2, 2]),
    ],
)
def test_action_codes_reach_from_zero_to_one(space, least, most):
    codes = action_code(space, jnp.asarray([least, most], jnp.int32))
    np.testing.assert_allclose(codes, [0.0, 1.0])
