"""V-trace, GAE and n-step returns against published numbers, and against their definitions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sebulba.distributions import categorical_log_prob
from sebulba.returns import gae, n_step_returns, vtrace
from sebulba.value_rescaling import inverse_rescale, rescale
from tests.streams import random_env_steps, runs_of_valid

DISCOUNT = 0.9


def array(x, dtype=jnp.float32):
    return jnp.asarray(x, dtype)


def all_valid(x):
    return jnp.ones(np.shape(x), bool)


# Three steps of episode 1, truncated; a reset; two of episode 2, terminated; a reset; one of 3.
STREAM = {
    "rewards": array([1, 2, 3, 0, 4, 5, 0, 6]),
    "discounts": DISCOUNT * (1 - array([0, 0, 0, 0, 0, 1, 0, 0])),
    "valid": ~array([0, 0, 0, 1, 0, 0, 1, 0], bool),
    "values": array([0.5, -0.2, 0.3, 0.8, 1.1, -0.4, 0.9, 0.2, 0.6]),
}
STREAM_LOG_RHOS = jnp.log(array([0.5, 1.5, 0.8, 2, 0.7, 1.2, 0.6, 0.9]))


def random_stream(seed, length=12, num_envs=40):
    rows = random_env_steps(seed, length, num_envs)
    rng = np.random.default_rng(seed + 1000)
    valid = ~rows.done[:-1]
    assert (rows.truncated[1:] & valid).any() and (rows.terminated[1:] & valid).any()
    log_rhos = rng.normal(size=(length, num_envs)).astype(np.float32)
    arguments = {
        "rewards": rows.reward[1:],
        "discounts": (DISCOUNT * (1 - rows.terminated[1:])).astype(np.float32),
        "valid": valid,
        "values": rng.normal(size=(length + 1, num_envs)).astype(np.float32),
    }
    return {name: jnp.asarray(x) for name, x in arguments.items()}, jnp.asarray(log_rhos)


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


def gae_by_definition(rewards, discounts, valid, values, lambda_):
    rewards, discounts, values = (np.asarray(x, np.float64) for x in (rewards, discounts, values))
    advantages = np.zeros_like(rewards)
    for b, start, stop in runs_of_valid(np.asarray(valid)):
        for s in range(start, stop):
            for t in range(s, stop):
                td_error = rewards[t, b] + discounts[t, b] * values[t + 1, b] - values[t, b]
                advantages[s, b] += np.prod(lambda_ * discounts[s:t, b]) * td_error
    return advantages


def n_step_by_definition(rewards, discounts, valid, bootstrap_values, n):
    rewards, discounts = np.asarray(rewards, np.float64), np.asarray(discounts, np.float64)
    returns = np.zeros_like(rewards)
    for b, start, stop in runs_of_valid(np.asarray(valid)):
        for s in range(start, stop):
            end = min(s + n, stop)
            for t in range(s, end):
                returns[s, b] += np.prod(discounts[s:t, b]) * rewards[t, b]
            returns[s, b] += np.prod(discounts[s:end, b]) * bootstrap_values[end - 1, b]
    return returns


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
        return jnp.broadcast_to(x.reshape(-1, *(1 for _ in batch)), (len(x), *batch))

    result = vtrace(
        log_rhos=column([-2.5, -1.5, -0.5, 0.5, 1.5]),
        rewards=column(range(5)),
        discounts=column([DISCOUNT] * 5),
        valid=column([1] * 5).astype(bool),
        values=column([0, 1, 2, 3, 4, 1]),
        clip_rho=clip_rho,
        clip_pg_rho=clip_pg_rho,
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
    action = array([[0, 1, 0, 0], [1, 0, 0, 1]], jnp.int32)
    log_rhos = categorical_log_prob(target, action) - categorical_log_prob(behaviour, action)
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


def test_vtrace_cuts_at_truncation_termination_and_reset():
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
    rhos = jnp.minimum(jnp.exp(STREAM_LOG_RHOS), 1.0)
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
        clip_rho=clip_rho,
        clip_c=clip_c,
        clip_pg_rho=clip_pg_rho,
        **stream,
    )
    targets, advantages = vtrace_by_definition(log_rhos, **stream, lambda_=lambda_, clips=clips)
    np.testing.assert_allclose(result.values, targets, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(result.advantages, advantages, rtol=1e-4, atol=1e-5)


def test_vtrace_on_policy_gives_the_bootstrapped_return():
    stream, log_rhos = random_stream(0)
    result = vtrace(log_rhos=jnp.zeros_like(log_rhos), **stream)
    length = log_rhos.shape[0]
    bootstrap_values = stream.pop("values")[1:]
    returns = n_step_returns(**stream, bootstrap_values=bootstrap_values, n=length)
    np.testing.assert_allclose(
        jnp.where(stream["valid"], result.values, 0.0), returns, rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("length", [1, 12])
def test_vtrace_without_traces_is_one_step_td(length):
    stream, log_rhos = random_stream(0)
    log_rhos, values = log_rhos[:length], stream["values"][: length + 1]
    stream = {name: x[:length] for name, x in stream.items()} | {"values": values}
    result = vtrace(log_rhos=log_rhos, lambda_=0.0 if length > 1 else 1.0, **stream)
    td_errors = stream["rewards"] + stream["discounts"] * values[1:] - values[:-1]
    rhos = jnp.where(stream["valid"], jnp.minimum(jnp.exp(log_rhos), 1.0), 0.0)
    np.testing.assert_allclose(result.values, values[:-1] + rhos * td_errors, rtol=1e-5, atol=1e-6)


def test_vtrace_without_discounts_is_a_weighted_bandit():
    stream, log_rhos = random_stream(0)
    stream["discounts"] = jnp.zeros_like(log_rhos)
    result = vtrace(log_rhos=log_rhos, **stream)
    values = stream["values"][:-1]
    rhos = jnp.where(stream["valid"], jnp.minimum(jnp.exp(log_rhos), 1.0), 0.0)
    expected = values + rhos * (stream["rewards"] - values)
    np.testing.assert_allclose(result.values, expected, rtol=1e-5, atol=1e-6)


def test_vtrace_is_the_same_for_a_stream_split_where_it_terminated():
    border = 6  # Transition 5 terminates.
    whole = vtrace(log_rhos=STREAM_LOG_RHOS, **STREAM)

    def part(start, stop):
        rows = {name: x[start:stop] for name, x in STREAM.items()}
        rows["values"] = STREAM["values"][start : stop + 1]
        return vtrace(log_rhos=STREAM_LOG_RHOS[start:stop], **rows)

    halves = jax.tree.map(lambda *x: jnp.concatenate(x), part(0, border), part(border, 8))
    np.testing.assert_array_equal(whole.values, halves.values)
    np.testing.assert_array_equal(whole.advantages, halves.advantages)


def test_vtrace_survives_ratios_that_overflow_and_vanish():
    log_rhos = array([200.0, -200.0, 1e30, -jnp.inf, jnp.inf, 0.0, 0.0, 0.0])
    result = vtrace(log_rhos=log_rhos, **STREAM)
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(result))


def test_vtrace_ignores_a_nan_ratio_of_the_reset_transition():
    log_rhos = jnp.where(STREAM["valid"], STREAM_LOG_RHOS, jnp.nan)
    result = vtrace(log_rhos=log_rhos, **STREAM)
    expected = vtrace(log_rhos=STREAM_LOG_RHOS, **STREAM)
    np.testing.assert_array_equal(result.values, expected.values)
    np.testing.assert_array_equal(result.advantages, expected.advantages)


def test_no_gradient_flows_through_any_target():
    stream, log_rhos = random_stream(0)
    valid = stream.pop("valid")

    def total(inputs):
        log_rhos, stream = inputs
        result = vtrace(log_rhos=log_rhos, valid=valid, **stream)
        advantages = gae(valid=valid, lambda_=0.95, **stream)
        values = stream["values"][1:]
        steps = {name: stream[name] for name in ("rewards", "discounts")}
        returns = n_step_returns(valid=valid, bootstrap_values=values, n=3, **steps)
        return sum(jnp.sum(x) for x in (result.values, result.advantages, advantages, returns))

    for gradient in jax.tree.leaves(jax.grad(total)((log_rhos, stream))):
        np.testing.assert_array_equal(gradient, jnp.zeros_like(gradient))


def test_targets_are_float32_also_of_bfloat16():
    stream, log_rhos = random_stream(0)
    stream = {n: x if x.dtype == bool else x.astype(jnp.bfloat16) for n, x in stream.items()}
    result = vtrace(log_rhos=log_rhos.astype(jnp.bfloat16), **stream)
    assert {leaf.dtype for leaf in jax.tree.leaves(result)} == {jnp.dtype(jnp.float32)}
    assert gae(lambda_=0.95, **stream).dtype == jnp.float32


@pytest.mark.parametrize(
    ("lambda_", "advantages"),
    [
        (1.0, [-1.451188, -4.455746, 2.539651, 0.5249, -0.49]),
        (0.7, [-0.676979, -5.248167, 2.484608, 0.67043, -0.49]),
        (0.4, [0.567319, -6.042124, 2.34312, 0.81596, -0.49]),
    ],
)
def test_gae_matches_rlaxs_numbers(lambda_, advantages):
    """The inputs of google-deepmind/rlax's multistep_test.py."""
    rewards = array([0, 0, 1, 0, -0.5])
    result = gae(
        rewards=rewards,
        discounts=jnp.full(5, 0.99),
        valid=all_valid(rewards),
        values=array([1, 4, -3, -2, -1, -1]),
        lambda_=lambda_,
    )
    np.testing.assert_allclose(result, advantages, rtol=1e-5)


def test_gae_cuts_at_truncation_termination_and_reset():
    result = gae(lambda_=0.95, **STREAM)
    expected = [4.931955, 5.3941, 3.42, 0, 7.157, 5.4, 0, 6.34]
    np.testing.assert_allclose(result, expected, rtol=1e-6)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("lambda_", [0.0, 0.95, 1.0])
def test_gae_equals_its_definition_on_random_streams(seed, lambda_):
    stream, _ = random_stream(seed)
    expected = gae_by_definition(**stream, lambda_=lambda_)
    np.testing.assert_allclose(gae(lambda_=lambda_, **stream), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("n", "rewards", "done", "returns"),
    [
        (1, [1, 2, 3], [0, 0, 0], [91, 182, 273]),
        (1, [1, 2, 3], [0, 1, 0], [91, 2, 273]),
        (2, [1, 2, 3], [0, 0, 0], [1 + 1.8 + 162, 2 + 2.7 + 243, 273]),
        (
            3,
            [1, 2, 3, 4, 5, 6, 7],
            [0, 0, 0, 1, 0, 0, 0],
            [223.93, 7.94, 6.6, 4, 526.37, 579.3, 637],
        ),
    ],
)
def test_n_step_returns_match_seed_rls_numbers(n, rewards, done, returns):
    """The inputs of google-research/seed_rl's agents/r2d2/learner_test.py, which has no resets."""
    result = n_step_returns(
        rewards=array(rewards),
        discounts=DISCOUNT * (1 - array(done)),
        valid=all_valid(rewards),
        bootstrap_values=100 * (1 + jnp.arange(len(rewards), dtype=jnp.float32)),
        n=n,
    )
    np.testing.assert_allclose(result, returns, rtol=1e-6)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 12, 100])
def test_n_step_returns_equal_their_definition_on_random_streams(n):
    stream, _ = random_stream(n)
    bootstrap_values = stream.pop("values")[1:]
    expected = n_step_by_definition(**stream, bootstrap_values=bootstrap_values, n=n)
    result = n_step_returns(**stream, bootstrap_values=bootstrap_values, n=n)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("n", "truncated", "targets"),
    [
        (1, False, [0.720805, 2.193225, 2.326625, 1.995987, 1.564918]),
        (3, False, [2.162688, 2.002966, 2.326625, 1.561646, 1.564918]),
        (5, False, [2.162688, 2.002966, 2.326625, 1.561646, 1.564918]),
        (3, True, None),
    ],
)
def test_transformed_double_q_targets_match_golden_numbers(n, truncated, targets):
    online = array([[1, 2], [0.5, -0.5], [3, 1], [0.2, 0.4], [1.5, 2.5], [0.7, 0.1]])
    target = array([[0.9, 2.2], [0.4, -0.3], [2.5, 1.5], [0.3, 0.6], [1.2, 2], [0.6, 0.2]])
    greedy = jnp.argmax(online, axis=-1)
    boots = inverse_rescale(jnp.take_along_axis(target, greedy[:, None], axis=-1)[:, 0])[1:]
    rewards = array([1, -2, 10, 0, 4])
    discounts = 0.997 * (1 - array([0, 0, not truncated, 0, 0]))
    valid = array([1, 1, 1, not truncated, 1], bool)
    steps = {"rewards": rewards, "discounts": discounts, "valid": valid}
    result = rescale(n_step_returns(**steps, bootstrap_values=boots, n=n))
    if not truncated:
        np.testing.assert_allclose(result, targets, rtol=1e-5)
        return
    final = 10 + 0.997 * boots[2]
    expected = rescale(jnp.stack([1 + 0.997 * (-2 + 0.997 * final), -2 + 0.997 * final, final]))
    np.testing.assert_allclose(result[:3], expected, rtol=1e-5)


def test_transformed_n_step_td_errors_match_rlaxs_numbers():
    """The inputs of google-deepmind/rlax's nonlinear_bellman_test.py (n = 2)."""
    q = array([[[1.1, 2.1], [-1.1, 1.1], [3.1, -3.1]], [[2.1, 3.1], [-1.1, 0.1], [-2.1, -1.1]]])
    target_q = array(
        [[[1.2, 2.2], [-1.2, 0.2], [2.2, -1.2]], [[4.2, 2.2], [1.2, 1.2], [-1.2, -2.2]]]
    )
    action = array([[0, 1, 0], [1, 0, 0]], jnp.int32)[..., None]
    taken = jnp.take_along_axis(q, action, axis=-1)[..., 0].T
    boots = jnp.take_along_axis(target_q, action, axis=-1)[..., 0].T
    steps = {
        "rewards": array([[-1.3, -1.3, 2.3], [1.3, 5.3, -3.3]]).T,
        "discounts": array([[0.0, 0.89, 0.85], [0.88, 1.0, 0.83]]).T,
        "valid": all_valid(taken),
    }
    plain = n_step_returns(**steps, bootstrap_values=boots, n=2) - taken
    np.testing.assert_allclose(
        plain.T, [[-2.4, 1.3112999, 1.0700002], [3.9199996, 2.104, -2.196]], rtol=1e-4
    )
    rescaled = (
        rescale(n_step_returns(**steps, bootstrap_values=inverse_rescale(boots), n=2)) - taken
    )
    expected = [[-1.6178751, 0.85600746, -0.75762916], [-0.87689304, 0.6246443, 0.3598088]]
    np.testing.assert_allclose(rescaled.T, expected, rtol=1e-4)


def compute_all(log_rhos, stream):
    result = vtrace(log_rhos=log_rhos, **stream)
    steps = {name: x for name, x in stream.items() if name != "values"}
    bootstrap_values = stream["values"][1:]
    return [
        result.values,
        result.advantages,
        gae(lambda_=0.95, **stream),
        n_step_returns(**steps, bootstrap_values=bootstrap_values, n=5),
    ]


def test_nothing_after_a_truncation_changes_targets_before_it():
    later = {
        "rewards": STREAM["rewards"].at[3:].add(7.0),
        "discounts": STREAM["discounts"].at[3:].multiply(0.5),
        "valid": STREAM["valid"],
        "values": STREAM["values"].at[4:].add(-3.0),
    }
    before = compute_all(STREAM_LOG_RHOS, STREAM)
    after = compute_all(STREAM_LOG_RHOS.at[3:].add(-0.5), later)
    for x, y in zip(before, after, strict=True):
        np.testing.assert_array_equal(x[:3], y[:3])
        assert (x[4:6] != y[4:6]).any()


def test_mismatched_shapes_are_named():
    wrong = STREAM | {"values": STREAM["values"][:-1]}
    with pytest.raises(ValueError, match=r"expected values of shape \(9,\).*got \(8,\)"):
        gae(lambda_=0.9, **wrong)
    with pytest.raises(ValueError, match=r"one shape.*'valid': \(7,\)"):
        vtrace(log_rhos=STREAM_LOG_RHOS, **STREAM | {"valid": STREAM["valid"][:-1]})
    steps = {name: x for name, x in STREAM.items() if name != "values"}
    with pytest.raises(ValueError, match="n = 0"):
        n_step_returns(**steps, bootstrap_values=STREAM["values"][1:], n=0)


@pytest.mark.filterwarnings("ignore")
def test_vtrace_and_gae_equal_rlaxs():
    rlax = pytest.importorskip("rlax")
    stream, log_rhos = random_stream(0)
    stream = {name: x[:, 0] for name, x in stream.items()}
    assert not stream["valid"].all()
    # Neither has a mask that cuts: V-trace can be given ratios of 0, GAE only one episode.
    rhos = jnp.where(stream["valid"], jnp.exp(log_rhos[:, 0]), 0.0)
    values, rewards, discounts = stream["values"], stream["rewards"], stream["discounts"]
    inputs = (values[:-1], values[1:], rewards, discounts, rhos)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        expected = rlax.vtrace_td_error_and_advantage(*inputs)
        # Its advantages mix values and targets by λ, so only the errors are the paper's.
        expected_mixed = rlax.vtrace_td_error_and_advantage(*inputs, lambda_=0.9)
        expected_gae = rlax.truncated_generalized_advantage_estimation(
            rewards, discounts, 0.9, values
        )
    result = vtrace(log_rhos=log_rhos[:, 0], **stream)
    mixed = vtrace(log_rhos=log_rhos[:, 0], lambda_=0.9, **stream)
    advantages = gae(lambda_=0.9, **stream | {"valid": all_valid(rhos)})
    for got, wanted in (
        (result.values - values[:-1], expected.errors),
        (result.advantages, expected.pg_advantage),
        (mixed.values - values[:-1], expected_mixed.errors),
        (advantages, expected_gae),
    ):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
