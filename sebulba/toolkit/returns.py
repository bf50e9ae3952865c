"""Targets and advantages of streams with resets: V-trace, GAE and n-step returns.

Axes are time-major, `[T, B]` or `[T]`: entry `t` belongs to transition `t`, from row `t` to row
`t + 1` of a trajectory (see `sebulba.types`). Every function takes, from the trajectory's rows,

    rewards    r_{t+1}                        `env_steps.reward[1:]`
    discounts  γ_{t+1} = γ·(1 − terminated)   from `env_steps.terminated[1:]`
    valid      False for the transition out of a final observation, whose action was ignored

A termination sets the discount to 0. After a truncation the next transition is invalid: nothing is
accumulated from there, and the value of the final observation is the bootstrap. Targets are
float32, and no gradient flows into or through them. Wrong shapes raise an `AssertionError`.
"""

import dataclasses

import chex
import jax
import jax.numpy as jnp

from sebulba.pytree import pytree_dataclass
from sebulba.toolkit.scans import scan_rows

MAX_LOG_RATIO = 20.0
"""Upper bound of the log of a ratio of probabilities: no ratio is above e^20, about 485 million.

Infinite from a log of 88.7 on, a ratio would make a loss infinite, or NaN where it is multiplied by
0. The bound leaves room for the product of two ratios, and for the squares of its gradients in
their norm.
"""


def ratio_of(log_ratio: jax.Array, clip: float | None = None) -> jax.Array:
    """Return exp(log_ratio), `[...]`, at most `clip` and never above e^20.

    Where a bound applies, the ratio has no gradient.

    Args:
        log_ratio: `[...]`, log π(a) − log μ(a).
        clip: upper bound of the ratio; None: e^20.
    """
    # Clipped before `exp`: the gradient of an infinite ratio is NaN, also behind a `where`.
    most = MAX_LOG_RATIO if clip is None else jnp.minimum(jnp.log(clip), MAX_LOG_RATIO)
    return jnp.exp(jnp.minimum(log_ratio, most))


@dataclasses.dataclass(frozen=True, kw_only=True)
class VTraceClips:
    """Upper bounds of the importance weights π(a)/μ(a); see `ratio_of`."""

    rho: float = 1.0  # ρ̄, in the value targets
    c: float = 1.0  # c̄, in the trace coefficients
    pg_rho: float = 1.0  # in the policy gradient's advantages


@pytree_dataclass
class VTrace:
    """The results of `vtrace`."""

    values: jax.Array  # [T, B] v_t, the value targets; V_t where invalid
    advantages: jax.Array  # [T, B] of the policy gradient, ρ-weighted; 0 where invalid
    rhos: jax.Array  # [T, B] min(ρ̄, ρ_t); 0 where invalid


def vtrace(
    *,
    log_rhos: jax.Array,
    rewards: jax.Array,
    discounts: jax.Array,
    valid: jax.Array,
    values: jax.Array,
    lambda_: float = 1.0,
    clips: VTraceClips = VTraceClips(),
) -> VTrace:
    """Return V-trace targets and policy gradient advantages.

    Espeholt et al. 2018, "IMPALA" (arXiv 1802.01561), eq. 1 and section 4.2, with the trace
    coefficients `c_t = λ·min(c̄, ρ_t)` of its remark 2.

    Args:
        log_rhos: `[T, B]`, log π(a_t) − log μ(a_t).
        rewards: `[T, B]`.
        discounts: `[T, B]`.
        valid: `[T, B]`, bool.
        values: `[T + 1, B]`, of all rows; the last one is the bootstrap.
        lambda_: λ.
        clips: ρ̄, c̄ and the bound of the policy gradient's weights.
    """
    chex.assert_equal_shape([log_rhos, rewards, discounts, valid, values[1:]])
    log_rhos, rewards, discounts, values = _constants(log_rhos, rewards, discounts, values)

    def clipped_rhos(clip: float) -> jax.Array:
        # `where`, since a product would keep a NaN.
        return jnp.where(valid, ratio_of(log_rhos, clip), 0.0)

    rhos = clipped_rhos(clips.rho)
    td_errors = rhos * (rewards + discounts * values[1:] - values[:-1])
    corrections = _discounted_sum(td_errors, lambda_ * discounts * clipped_rhos(clips.c))
    targets = values[:-1] + corrections
    next_targets = jnp.concatenate([targets[1:], values[-1:]])
    advantages = clipped_rhos(clips.pg_rho) * (rewards + discounts * next_targets - values[:-1])
    return VTrace(values=targets, advantages=advantages, rhos=rhos)


def gae(
    *,
    rewards: jax.Array,
    discounts: jax.Array,
    valid: jax.Array,
    values: jax.Array,
    lambda_: float,
) -> jax.Array:
    """Return generalised advantage estimates `[T, B]`, 0 where invalid.

    Schulman et al. 2016 (arXiv 1506.02438), eq. 16. The matching value targets are
    `values[:-1] + advantages`.

    Args:
        rewards: `[T, B]`.
        discounts: `[T, B]`.
        valid: `[T, B]`, bool.
        values: `[T + 1, B]`, of all rows; the last one is the bootstrap.
        lambda_: λ.
    """
    chex.assert_equal_shape([rewards, discounts, valid, values[1:]])
    rewards, discounts, values = _constants(rewards, discounts, values)
    td_errors = jnp.where(valid, rewards + discounts * values[1:] - values[:-1], 0.0)
    return _discounted_sum(td_errors, jnp.where(valid, lambda_ * discounts, 0.0))


def n_step_returns(
    *,
    rewards: jax.Array,
    discounts: jax.Array,
    valid: jax.Array,
    bootstrap_values: jax.Array,
    n: int,
) -> jax.Array:
    """Return n-step returns `[T, B]`, 0 where invalid.

        G^(k)_t = r_{t+1} + γ_{t+1}·G^(k−1)_{t+1}    if k > 1, t + 1 < T and valid_{t+1}
                  r_{t+1} + γ_{t+1}·V_{t+1}          otherwise

    Near the end of a trajectory or of a truncated episode, fewer rewards are summed, and the
    bootstrap is the value of the episode's last row.

    Args:
        rewards: `[T, B]`, in the units of `bootstrap_values` (both raw if values are rescaled).
        discounts: `[T, B]`.
        valid: `[T, B]`, bool.
        bootstrap_values: `[T, B]`, of rows 1 … T: `bootstrap_values[t]` is `V_{t+1}`.
        n: maximum number of rewards in a return, at least 1.

    Raises:
        ValueError: `n` is not positive.
    """
    if n < 1:
        raise ValueError(f"expected n-step returns of n ≥ 1, got n = {n}")
    chex.assert_equal_shape([rewards, discounts, valid, bootstrap_values])
    rewards, discounts, bootstrap_values = _constants(rewards, discounts, bootstrap_values)
    # Each pass extends all returns by one reward, from (k − 1)-step to k-step returns.
    returns = rewards + discounts * bootstrap_values
    for _ in range(min(n, rewards.shape[0]) - 1):
        continued = jnp.where(valid[1:], returns[1:], bootstrap_values[:-1])
        returns = rewards + discounts * jnp.concatenate([continued, bootstrap_values[-1:]])
    return jnp.where(valid, returns, 0.0)


def _discounted_sum(terms: jax.Array, decays: jax.Array) -> jax.Array:
    """Return `s_t = terms_t + decays_t · s_{t+1}`, `[T, B]`, from `s_T = 0`."""

    def step(following: jax.Array, row: tuple[jax.Array, jax.Array]):
        term, decay = row
        total = term + decay * following
        return total, total

    _, sums = scan_rows(step, jnp.zeros_like(terms[0]), (terms, decays), reverse=True)
    return sums


def _constants(*arrays: jax.Array) -> tuple[jax.Array, ...]:
    return tuple(jax.lax.stop_gradient(jnp.asarray(array, jnp.float32)) for array in arrays)
