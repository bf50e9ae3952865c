"""What V-trace, GAE and n-step returns have in common, and that rlax gives the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.toolkit.return_streams import (
    STREAM,
    STREAM_LOG_RHOS,
    all_valid,
    gae,
    n_step_returns,
    random_stream,
    vtrace,
)


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

    for gradient in jax.tree.leaves(jax.jit(jax.grad(total))((log_rhos, stream))):
        np.testing.assert_array_equal(gradient, np.zeros_like(gradient))


def test_targets_are_float32_also_of_bfloat16():
    stream, log_rhos = random_stream(0)
    stream = {n: x if x.dtype == bool else x.astype(jnp.bfloat16) for n, x in stream.items()}
    result = vtrace(log_rhos=log_rhos.astype(jnp.bfloat16), **stream)
    assert {leaf.dtype for leaf in jax.tree.leaves(result)} == {jnp.dtype(jnp.float32)}
    assert gae(lambda_=0.95, **stream).dtype == jnp.float32


def test_nothing_after_a_truncation_changes_targets_before_it():
    later = {name: x.copy() for name, x in STREAM.items()}
    later["rewards"][3:] += 7.0
    later["discounts"][3:] *= 0.5
    later["values"][4:] -= 3.0
    log_rhos = STREAM_LOG_RHOS.copy()
    log_rhos[3:] -= 0.5
    before, after = compute_all(STREAM_LOG_RHOS, STREAM), compute_all(log_rhos, later)
    for x, y in zip(before, after, strict=True):
        np.testing.assert_array_equal(x[:3], y[:3])
        assert (x[4:6] != y[4:6]).any()


def test_mismatched_shapes_are_refused():
    wrong = STREAM | {"values": STREAM["values"][:-1]}
    with pytest.raises(AssertionError, match=r"different shapes: .*\(7,\)"):
        gae(lambda_=0.9, **wrong)
    with pytest.raises(AssertionError, match=r"different shapes: .*\(7,\)"):
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
    rhos = np.where(stream["valid"], np.exp(log_rhos[:, 0]), 0.0)
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
