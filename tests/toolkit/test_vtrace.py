"""V-trace against published numbers, and against its definition."""

import jax
import numpy as np
import pytest

from sebulba.toolkit.distributions import Categorical
from sebulba.toolkit.returns import VTraceClips, ratio_of
from tests.streams import runs_of_valid
from tests.toolkit.return_streams import (
    DISCOUNT,
    STREAM,
    STREAM_LOG_RHOS,
    all_valid,
    array,
    n_step_returns,
    random_stream,
    vtrace,
)


def vtrace_by_definition(log_rhos, rewards, discounts, valid, values, lambda_, clips):
    """Espeholt et al. 2018, eq. 1: a sum of products, for each state of each episode by itself."""
    rewards, discounts, values = (np.asarray(x, np.float64) for x in (rewards, discounts, values))
    clip_rho, clip_c, clip_pg_rho = (
        np.minimum(np.exp(np.asarray(log_rhos, np.float64)), clip) for clip in clips
    )
    targets = values.copy()
    advantages = np.zeros_like(rewards)
    for b, start, stop in runs_of_valid(np.asarray(valid)):
        for s in range(start, stop):
            for t in range(s, stop):
                product = np.prod(discounts[s:t, b] * lambda_ * clip_c[s:t, b])
                td_error = rewards[t, b] + discounts[t, b] * values[t + 1, b] - values[t, b]
                targets[s, b] += product * clip_rho[t, b] * td_error
        for s in range(start, stop):
            following = targets[s + 1, b] if s + 1 < stop else values[stop, b]
            q = rewards[s, b] + discounts[s, b] * following
            advantages[s, b] = clip_pg_rho[s, b] * (q - values[s, b])
    return targets[:-1], advantages


@pytest.mark.parametrize(
    ("clip_rho", "clip_pg_rho", "targets", "advantages"),
    [
        (
            3.7,
            2.2,
            [0.200182, 2.709682, 8.513628, 11.932397, 7.33],
            [0.200182, 1.709682, 6.513628, 10.876614, 1.98],
        ),
        (
            1.0,
            1.0,
            [0.163557, 2.21393, 6.044953, 7.41, 4.9],
            [0.163557, 1.21393, 4.044953, 4.41, 0.9],
        ),
    ],
)
@pytest.mark.parametrize("batch", [(), (1,), (3,)])
def test_vtrace_matches_scalable_agents_numbers(clip_rho, clip_pg_rho, targets, advantages, batch):
    """The inputs of deepmind/scalable_agent's vtrace_test.py, for one batch entry."""

    def column(x):
        x = array(x)
        return np.broadcast_to(x.reshape(-1, *(1 for _ in batch)), (len(x), *batch))

    result = vtrace(
        log_rhos=column([-2.5, -1.5, -0.5, 0.5, 1.5]),
        rewards=column(range(5)),
        discounts=column([DISCOUNT] * 5),
        valid=column([1] * 5).astype(bool),
        values=column([0, 1, 2, 3, 4, 1]),
        clips=VTraceClips(rho=clip_rho, pg_rho=clip_pg_rho),
    )
    np.testing.assert_allclose(result.values, column(targets), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(result.advantages, column(advantages), rtol=1e-6, atol=1e-6)


def test_vtrace_matches_rlaxs_numbers():
    """The inputs of google-deepmind/rlax's vtrace_test.py, with discounts 0 and 1 among them."""
    behaviour = array(
        [
            [[8.9, 0.7], [5.0, 1.0], [0.6, 0.1], [-0.9, -0.1]],
            [[0.3, -5.0], [1.0, -8.0], [0.3, 1.7], [4.7, 3.3]],
        ]
    )
    target = array(
        [
            [[0.4, 0.5], [9.2, 8.8], [0.7, 4.4], [7.9, 1.4]],
            [[1.0, 0.9], [1.0, -1.0], [-4.3, 8.7], [0.8, 0.3]],
        ]
    )
    action = array([[0, 1, 0, 0], [1, 0, 0, 1]], np.int32)
    log_prob = jax.jit(lambda logits: Categorical(logits=logits).log_prob(action))
    log_rhos = np.asarray(log_prob(target) - log_prob(behaviour))
    values = array([[2.1, 1.1, -3.1, 0.0, 8.4], [3.1, 0.1, -1.1, 7.4, -1.2]]).T
    result = vtrace(
        log_rhos=log_rhos.T,
        rewards=array([[-1.3, -1.3, 2.3, 42.0], [1.3, 5.3, -3.3, -5.0]]).T,
        discounts=array([[0.0, 0.89, 0.85, 0.99], [0.88, 1.0, 0.83, 0.95]]).T,
        valid=all_valid(log_rhos.T),
        values=values,
    )
    errors = array(
        [
            [-1.6155143, -3.4973226, 1.8670533, 50.316002],
            [1.4662437, 3.6116405, -8.3327293e-5, -13.54],
        ]
    )
    np.testing.assert_allclose((result.values - values[:-1]).T, errors, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(result.advantages.T, errors, rtol=1e-5, atol=1e-6)


def test_vtrace_stops_at_truncation_termination_and_reset():
    result = vtrace(log_rhos=STREAM_LOG_RHOS, **STREAM)
    targets = [2.87958, 4.7324, 3.036, 0.8, 6.28, 5, 0.9, 5.906]
    advantages = [2.37958, 4.9324, 2.736, 0, 5.18, 5.4, 0, 5.706]
    np.testing.assert_allclose(result.values, targets, rtol=1e-6)
    np.testing.assert_allclose(result.advantages, advantages, rtol=1e-6)
    np.testing.assert_allclose(result.rhos, [0.5, 1, 0.8, 0, 0.7, 1, 0, 0.9], rtol=1e-6)


def test_vtrace_without_the_mask_gives_the_known_wrong_answer():
    result = vtrace(log_rhos=STREAM_LOG_RHOS, **STREAM | {"valid": all_valid(STREAM["valid"])})
    np.testing.assert_allclose(result.values[0], 4.294423, rtol=1e-6)


def test_vtrace_does_not_carry_corrections_through_a_masked_step():
    """A mask that skips the reset transition, instead of cutting there, is known to give 4.390068.

    It adds the next episode's errors to the truncated one's.
    """
    td_errors = (
        STREAM["rewards"] + STREAM["discounts"] * STREAM["values"][1:] - STREAM["values"][:-1]
    )
    rhos = np.minimum(np.exp(STREAM_LOG_RHOS), 1.0)
    carried = 0.0
    for t in reversed(range(8)):
        if STREAM["valid"][t]:
            carried = rhos[t] * (td_errors[t] + STREAM["discounts"][t] * carried)
    np.testing.assert_allclose(STREAM["values"][0] + carried, 4.390068, rtol=1e-6)
    assert vtrace(log_rhos=STREAM_LOG_RHOS, **STREAM).values[0] == pytest.approx(2.87958, rel=1e-6)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("lambda_", "clips"), [(1.0, (1.0, 1.0, 1.0)), (0.8, (2.0, 1.5, 3.0)), (0.9, (0.5, 0.7, 1.0))]
)
def test_vtrace_equals_its_definition_on_random_streams(seed, lambda_, clips):
    stream, log_rhos = random_stream(seed)
    clip_rho, clip_c, clip_pg_rho = clips
    result = vtrace(
        log_rhos=log_rhos,
        lambda_=lambda_,
        clips=VTraceClips(rho=clip_rho, c=clip_c, pg_rho=clip_pg_rho),
        **stream,
    )
    targets, advantages = vtrace_by_definition(log_rhos, **stream, lambda_=lambda_, clips=clips)
    np.testing.assert_allclose(result.values, targets, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(result.advantages, advantages, rtol=1e-4, atol=1e-5)


def test_vtrace_on_policy_gives_the_bootstrapped_return():
    stream, log_rhos = random_stream(0)
    result = vtrace(log_rhos=np.zeros_like(log_rhos), **stream)
    length = log_rhos.shape[0]
    bootstrap_values = stream.pop("values")[1:]
    returns = n_step_returns(**stream, bootstrap_values=bootstrap_values, n=length)
    np.testing.assert_allclose(
        np.where(stream["valid"], result.values, 0.0), returns, rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("length", [1, 12])
def test_vtrace_without_traces_is_one_step_td(length):
    stream, log_rhos = random_stream(0)
    log_rhos, values = log_rhos[:length], stream["values"][: length + 1]
    stream = {name: x[:length] for name, x in stream.items()} | {"values": values}
    result = vtrace(log_rhos=log_rhos, lambda_=0.0 if length > 1 else 1.0, **stream)
    td_errors = stream["rewards"] + stream["discounts"] * values[1:] - values[:-1]
    rhos = np.where(stream["valid"], np.minimum(np.exp(log_rhos), 1.0), 0.0)
    np.testing.assert_allclose(result.values, values[:-1] + rhos * td_errors, rtol=1e-5, atol=1e-6)


def test_vtrace_without_discounts_is_a_weighted_bandit():
    stream, log_rhos = random_stream(0)
    stream["discounts"] = np.zeros_like(log_rhos)
    result = vtrace(log_rhos=log_rhos, **stream)
    values = stream["values"][:-1]
    rhos = np.where(stream["valid"], np.minimum(np.exp(log_rhos), 1.0), 0.0)
    expected = values + rhos * (stream["rewards"] - values)
    np.testing.assert_allclose(result.values, expected, rtol=1e-5, atol=1e-6)


def test_vtrace_is_the_same_for_a_stream_split_where_it_terminated():
    border = 6  # Transition 5 terminates.
    whole = vtrace(log_rhos=STREAM_LOG_RHOS, **STREAM)

    def part(start, stop):
        rows = {name: x[start:stop] for name, x in STREAM.items()}
        rows["values"] = STREAM["values"][start : stop + 1]
        return vtrace(log_rhos=STREAM_LOG_RHOS[start:stop], **rows)

    halves = jax.tree.map(lambda *x: np.concatenate(x), part(0, border), part(border, 8))
    np.testing.assert_array_equal(whole.values, halves.values)
    np.testing.assert_array_equal(whole.advantages, halves.advantages)


def test_vtrace_survives_ratios_that_overflow_and_vanish():
    log_rhos = array([200.0, -200.0, 1e30, -np.inf, np.inf, 0.0, 0.0, 0.0])
    result = vtrace(log_rhos=log_rhos, **STREAM)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(result))


def test_vtrace_ignores_a_nan_ratio_of_the_reset_transition():
    log_rhos = np.where(STREAM["valid"], STREAM_LOG_RHOS, np.nan)
    result = vtrace(log_rhos=log_rhos, **STREAM)
    expected = vtrace(log_rhos=STREAM_LOG_RHOS, **STREAM)
    np.testing.assert_array_equal(result.values, expected.values)
    np.testing.assert_array_equal(result.advantages, expected.advantages)


def test_ratios_without_a_bound_of_their_own_are_bounded_where_float32_carries_them():
    log_ratios = np.array([-np.inf, -200.0, 0.0, 19.0, 21.0, 88.0, 1e30, np.inf], np.float32)
    # e^-200 is 0 in float32.
    expected = np.exp(np.minimum(log_ratios.astype(np.float64), 20.0)).astype(np.float32)
    np.testing.assert_allclose(ratio_of(log_ratios), expected, rtol=1e-5)
    np.testing.assert_allclose(ratio_of(log_ratios, 1e30), expected, rtol=1e-5)
    np.testing.assert_allclose(ratio_of(log_ratios, 1.5), np.minimum(expected, 1.5), rtol=1e-5)
    gradient = jax.vmap(jax.grad(ratio_of))(log_ratios)
    np.testing.assert_allclose(gradient, np.where(log_ratios < 20.0, expected, 0.0), rtol=1e-5)
