"""Tests of the stream contract for every adapter in `CASES`."""

import dataclasses

import gymnasium
import jax
import numpy as np
import pytest

from tests.envs.cases import (
    LIMIT,
    NUM_ENVS,
    NUM_STEPS,
    all_cases,
    assert_same,
    choose,
    ends_of_environments,
    is_same,
    masked_cases,
    other_actions,
    over,
    play,
    random_actions,
    random_stream,
    spec_of,
    stepped_cases,
)
from tests.envs.masked import NUM_ACTIONS, expected_masks

SHORT = 20  # steps in which another seed or other actions are seen


@all_cases
def test_stream_matches_the_spec(case):
    stream, _ = random_stream(case)
    rows = (NUM_STEPS + 1, case.num_rows)
    assert spec_of(case).num_players == case.num_players

    def check(spec, leaf):
        assert (leaf.shape, leaf.dtype) == ((*rows, *spec.shape), spec.dtype)

    jax.tree.map(check, spec_of(case).observation, stream.observation)
    assert (stream.reward.shape, stream.reward.dtype) == (rows, np.float32)
    for flag in (stream.terminated, stream.truncated, stream.is_first):
        assert (flag.shape, flag.dtype) == (rows, np.bool_)


@masked_cases
def test_stream_has_the_action_mask_of_each_observation(case):
    stream, _ = random_stream(case)
    spec = spec_of(case).action_mask
    assert (spec.shape, spec.dtype) == ((NUM_ACTIONS,), np.bool_)
    assert stream.action_mask.dtype == np.bool_
    np.testing.assert_array_equal(stream.action_mask, expected_masks(stream))


@over(lambda case: "masked" not in case.id.lower())
def test_stream_without_masks_has_no_leaf_for_them(case):
    assert spec_of(case).action_mask is None
    assert random_stream(case)[0].action_mask is None


@all_cases
def test_stream_resets_on_the_row_after_an_episode_end(case):
    stream, _ = random_stream(case)
    assert stream.is_first[0].all()
    np.testing.assert_array_equal(stream.is_first[1:], ends_of_environments(case, stream)[:-1])
    assert stream.done.any(axis=0).all()


@all_cases
def test_stream_repeats_the_final_row_of_a_player_until_its_environment_begins_anew(case):
    stream, _ = random_stream(case)
    is_held = stream.done[:-1] & ~ends_of_environments(case, stream)[:-1]
    assert is_held.any() == (case.num_players > 1)

    def check(rows):
        np.testing.assert_array_equal(rows[1:][is_held], rows[:-1][is_held])

    jax.tree.map(check, dataclasses.replace(stream, reward=None))
    assert not stream.reward[1:][is_held].any()


@all_cases
def test_stream_reset_rows_have_no_reward_and_end_no_episode(case):
    stream, _ = random_stream(case)
    assert np.count_nonzero(stream.reward) > 0
    assert not stream.reward[stream.is_first].any()
    assert not stream.done[stream.is_first].any()


@all_cases
def test_stream_ignores_the_action_of_a_final_row_and_depends_on_nothing_but_the_others(case):
    stream, actions = random_stream(case)
    done = stream.done[:-1]
    assert done.any()
    environment = case.make()
    other = other_actions(environment.spec.action_space, actions)
    assert_same(play(environment, choose(done, other, actions), fused=case.fused), stream)
    environment.close()


# The fused stream of a seed and of actions is this one, as the tests of fused environments show.
@stepped_cases
def test_another_seed_and_other_actions_give_another_stream(case):
    stream, actions = random_stream(case)
    other = choose(stream.done[:-1], actions, other_actions(spec_of(case).action_space, actions))
    for seed, played in ((8, actions), (7, other)):
        environment = case.make(seed=seed)
        rows = play(environment, played[:SHORT])
        assert not is_same(rows, jax.tree.map(lambda x: x[: SHORT + 1], stream))
        environment.close()


@over(lambda case: not case.always_one_step)
def test_stream_truncates_at_the_limit(case):
    stream, _ = random_stream(case, **case.limit)
    row = np.arange(NUM_STEPS + 1)[:, None] % (LIMIT + 1)
    everywhere = np.ones((1, case.num_rows), bool)
    np.testing.assert_array_equal(stream.is_first, (row == 0) & everywhere)
    np.testing.assert_array_equal(stream.truncated, (row == LIMIT) & everywhere)
    assert not stream.terminated.any()


@over(lambda case: case.terminates)
def test_stream_terminates_without_truncating(case):
    stream, _ = random_stream(case)
    assert stream.terminated.any()
    assert not stream.truncated.any()


@all_cases
def test_stream_differs_between_environments_and_episodes(case):
    stream, _ = random_stream(case)
    rows = stream.is_first.shape
    leaves = jax.tree.leaves(stream.observation)
    observation = np.concatenate([leaf.reshape(*rows, -1) for leaf in leaves], axis=-1)
    is_first = stream.is_first
    starts = [observation[is_first[:, b], b] for b in range(case.num_rows)]
    count = min(len(start) for start in starts)
    assert not np.array_equal(starts[0][:count], starts[1][:count])
    assert not np.array_equal(starts[1][:count], starts[2][:count])
    assert len(np.unique(starts[0], axis=0)) > 1


@stepped_cases
def test_step_returns_arrays_that_it_never_uses_again(case):
    stream, actions = random_stream(case)
    environment = case.make()
    assert environment.num_envs == NUM_ENVS
    rows = [environment.reset()]
    for t, action in enumerate(actions):
        rows.append(environment.step(action))
        if t >= 3:  # Three steps have not written to a returned row ...
            assert_same(rows[t - 3], jax.tree.map(lambda x, t=t: x[t - 3], stream))
        if t >= 4:  # ... and writing to an older one does not change the stream.
            jax.tree.map(lambda x: x.fill(1), rows[t - 4])
        assert_same(rows[-1], jax.tree.map(lambda x, t=t: x[t + 1], stream))
    environment.close()


@stepped_cases
def test_step_refuses_wrong_actions(case):
    environment = case.make()
    environment.reset()
    good = random_actions(environment.spec.action_space, num_envs=case.num_rows)[0]
    is_continuous = isinstance(environment.spec.action_space, gymnasium.spaces.Box)
    outside = (np.nan, np.inf) if is_continuous else (100, -2)
    for bad in (
        good[:-1],
        np.append(good, good),
        good[:, None],
        good.astype(np.int64),
        good.astype(np.float64),
        list(good),
        *(np.full_like(good, value) for value in outside),
    ):
        with pytest.raises(ValueError, match="expected"):
            environment.step(bad)
    environment.step(good)
    environment.close()


@stepped_cases
def test_close_may_be_called_twice_and_before_reset(case):
    environment = case.make()
    environment.close()
    environment.close()
