"""Targets and advantages: V-trace, GAE and n-step returns of streams with resets in them.

Axes are time-major, `[T, B]` or `[T]`: entry `t` belongs to transition `t`, from row `t` to row
`t + 1` of a trajectory (see `sebulba.types`). Every function takes, of the trajectory's rows,

    rewards    r_{t+1}                        `env_steps.reward[1:]`
    discounts  γ_{t+1} = γ·(1 − terminated)   from `env_steps.terminated[1:]`
    valid      False for the transition out of a final observation, whose action was ignored

A termination cuts through the discount. A truncation cuts because the next transition is not valid:
nothing is accumulated from there, and what remains is the value of the final observation. The
targets are computed in float32, and no gradient flows into or through them.
"""

import jax
import jax.numpy as jnp

from sebulba.pytree import pytree_dataclass


@pytree_dataclass
class VTrace:
    """What `vtrace` gives."""

    values: jax.Array  # [T, B] v_t, the targets of the values; V_t where not valid
    advantages: jax.Array  # [T, B] of the policy gradient, ρ-weighted; 0 where not valid
    rhos: jax.Array  # [T, B] min(ρ̄, ρ_t); 0 where not valid


def vtrace(
    *,
    log_rhos: jax.Array,
    rewards: jax.Array,
    discounts: jax.Array,
    valid: jax.Array,
    values: jax.Array,
    lambda_: float = 1.0,
    clip_rho: float = 1.0,
    clip_c: float = 1.0,
    clip_pg_rho: float = 1.0,
) -> VTrace:
    """Returns V-trace targets and policy gradient advantages.

    Espeholt et al. 2018, "IMPALA" (arXiv 1802.01561), eq. 1 and section 4.2, with the trace
    coefficients `c_t = λ·min(c̄, ρ_t)` of its remark 2.

    Args:
        log_rhos: `[T, B]`, log π(a_t) − log μ(a_t).
        rewards: `[T, B]`.
        discounts: `[T, B]`.
        valid: `[T, B]`, bool.
        values: `[T + 1, B]`, of all rows; the last one is bootstrapped from.
        lambda_: λ.
        clip_rho: ρ̄.
        clip_c: c̄.
        clip_pg_rho: clips the importance weights of the advantages.

    Raises:
        ValueError: shapes do not fit each other.
    """
    _check_shapes(values, log_rhos=log_rhos, rewards=rewards, discounts=discounts, valid=valid)
    log_rhos, rewards, discounts, values = _constants(log_rhos, rewards, discounts, values)

    def clipped_rhos(clip: float) -> jax.Array:
        # Clipped before `exp`, which would overflow; `where`, since a product would keep a NaN.
        rhos = jnp.exp(jnp.minimum(log_rhos, jnp.log(clip)))
        return jnp.where(valid, rhos, 0.0)

    rhos = clipped_rhos(clip_rho)
    td_errors = rhos * (rewards + discounts * values[1:] - values[:-1])
    corrections = _discounted_sum(td_errors, lambda_ * discounts * clipped_rhos(clip_c))
    targets = values[:-1] + corrections
    next_targets = jnp.concatenate([targets[1:], values[-1:]])
    advantages = clipped_rhos(clip_pg_rho) * (rewards + discounts * next_targets - values[:-1])
    return VTrace(values=targets, advantages=advantages, rhos=rhos)


def gae(
    *,
    rewards: jax.Array,
    discounts: jax.Array,
    valid: jax.Array,
    values: jax.Array,
    lambda_: float,
) -> jax.Array:
    """Returns generalised advantage estimates `[T, B]`, 0 where not valid.

    Schulman et al. 2016 (arXiv 1506.02438), eq. 16. The value targets that belong to them are
    `values[:-1] + advantages`.

    Args:
        rewards: `[T, B]`.
        discounts: `[T, B]`.
        valid: `[T, B]`, bool.
        values: `[T + 1, B]`, of all rows; the last one is bootstrapped from.
        lambda_: λ.

    Raises:
        ValueError: shapes do not fit each other.
    """
    _check_shapes(values, rewards=rewards, discounts=discounts, valid=valid)
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
    """Returns n-step returns `[T, B]`, 0 where not valid.

        G^(k)_t = r_{t+1} + γ_{t+1}·G^(k−1)_{t+1}    if k > 1, t + 1 < T and valid_{t+1}
                  r_{t+1} + γ_{t+1}·V_{t+1}          otherwise

    so the tail of a trajectory, and the end of a truncated episode, use fewer steps and bootstrap
    from the last row that belongs to the episode.

    Args:
        rewards: `[T, B]`, in the units of `bootstrap_values` (both raw if values are rescaled).
        discounts: `[T, B]`.
        valid: `[T, B]`, bool.
        bootstrap_values: `[T, B]`, `bootstrap_values[t]` is `V_{t+1}`, the value of the row that
            transition `t` arrives at: of rows 1 … T.
        n: most rewards in a return, at least 1.

    Raises:
        ValueError: `n` is not positive, or shapes do not fit each other.
    """
    if n < 1:
        raise ValueError(f"expected n-step returns of n ≥ 1, got n = {n}")
    _check_same_shape(
        rewards=rewards, discounts=discounts, valid=valid, bootstrap_values=bootstrap_values
    )
    rewards, discounts, bootstrap_values = _constants(rewards, discounts, bootstrap_values)
    returns = rewards + discounts * bootstrap_values
    for _ in range(min(n, rewards.shape[0]) - 1):
        continued = jnp.where(valid[1:], returns[1:], bootstrap_values[:-1])
        returns = rewards + discounts * jnp.concatenate([continued, bootstrap_values[-1:]])
    return jnp.where(valid, returns, 0.0)


def _discounted_sum(terms: jax.Array, decays: jax.Array) -> jax.Array:
    """Returns `s_t = terms_t + decays_t · s_{t+1}`, `[T, B]`, from `s_T = 0`."""

    def step(following: jax.Array, row: tuple[jax.Array, jax.Array]):
        term, decay = row
        total = term + decay * following
        return total, total

    _, sums = jax.lax.scan(step, jnp.zeros_like(terms[0]), (terms, decays), reverse=True)
    return sums


def _constants(*arrays: jax.Array) -> tuple[jax.Array, ...]:
    return tuple(jax.lax.stop_gradient(jnp.asarray(array, jnp.float32)) for array in arrays)


def _check_shapes(values: jax.Array, **arrays: jax.Array) -> None:
    shape = _check_same_shape(**arrays)
    expected = (shape[0] + 1, *shape[1:])
    if values.shape != expected:
        raise ValueError(
            f"expected values of shape {expected}, of all rows of {shape[0]} transitions,"
            f" got {values.shape}"
        )


def _check_same_shape(**arrays: jax.Array) -> tuple[int, ...]:
    shapes = {name: array.shape for name, array in arrays.items()}
    if len(set(shapes.values())) > 1:
        raise ValueError(f"expected arrays of one shape [T, B], got {shapes}")
    return next(iter(shapes.values()))
