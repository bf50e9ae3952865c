"""Targets of a learned model that is unrolled over the actions of a sequence.

The model starts from the observation of row 0 and sees the next K actions, but no further
observation. After k actions it predicts the reward received on arriving at row k, and value and
policy of row k (Schrittwieser et al. 2020, arXiv 1911.08265, section 3).

An episode may end within the sequence. Behind a termination the model learns an absorbing state, as
in appendix G of the paper: rewards and values of 0 whatever the actions, which are random there.
Policies have no target. Behind a truncation or a stream boundary nothing is known, so nothing is
learned; values before it bootstrap from the value of the last observation.
"""

import chex
import jax
import jax.numpy as jnp

from sebulba.pytree import pytree_dataclass
from sebulba.toolkit.replay.rows import valid_transitions
from sebulba.toolkit.returns import n_step_returns
from sebulba.types import EnvStep


@pytree_dataclass
class UnrollTargets:
    """Targets of K + 1 predictions, and the K actions between them, for `n` sequences."""

    action: jax.Array  # [K, n] int32, selected in rows 0 … K - 1; random behind an episode's end
    reward: jax.Array  # [K, n], received on arriving at rows 1 … K
    reward_mask: jax.Array  # [K, n] bool, False: no target
    value: jax.Array  # [K + 1, n]
    value_mask: jax.Array  # [K + 1, n] bool
    policy: jax.Array  # [K + 1, n, A] probabilities
    policy_mask: jax.Array  # [K + 1, n] bool


def unroll_targets(
    key: jax.Array,
    env_steps: EnvStep,
    *,
    action: jax.Array,
    policy: jax.Array,
    values: jax.Array,
    discount: float,
    n_step: int,
) -> UnrollTargets:
    """Return the targets of sequences `[K + n_step + 1, n]`, from as many rows.

    The value of row k is the n-step return that bootstraps from the value of row k + n_step, or of
    an episode's last row.

    Args:
        key: draws the random actions behind an episode's end; consumed.
        env_steps: `[K + n_step + 1, n]`, consecutive rows.
        action: `[K + n_step + 1, n]` int32, selected in these rows.
        policy: `[K + 1, n, A]`, improved policies of the first rows.
        values: `[K + n_step + 1, n]`, of all rows, to bootstrap from; that of a final row is used
            after a truncation only.
        discount: γ.
        n_step: rewards in a value's target.
    """
    num_rows = len(policy)
    chex.assert_shape([env_steps.reward, action, values], (num_rows + n_step, None))
    valid = valid_transitions(env_steps)
    returns = n_step_returns(
        rewards=env_steps.reward[1:],
        discounts=discount * (1.0 - env_steps.terminated[1:].astype(jnp.float32)),
        valid=valid,
        bootstrap_values=values[1:],
        n=n_step,
    )[:num_rows]
    valid = valid[:num_rows]
    # Whether a row belongs to the episode of row 0.
    unbroken = jax.lax.cummin(valid[:-1].astype(jnp.int32), axis=0) > 0
    is_reached = jnp.concatenate([jnp.ones_like(valid[:1]), unbroken])
    has_terminated = is_reached & env_steps.terminated[:num_rows]
    is_absorbed = jax.lax.cummax(has_terminated.astype(jnp.int32), axis=0) > 0
    is_chosen = is_reached & valid
    others = jax.random.randint(key, action[: num_rows - 1].shape, 0, policy.shape[-1], jnp.int32)
    return UnrollTargets(
        action=jnp.where(is_chosen[:-1], action[: num_rows - 1], others),
        reward=jnp.where(is_reached[1:], env_steps.reward[1:num_rows], 0.0),
        reward_mask=is_reached[1:] | is_absorbed[1:],
        value=jnp.where(is_absorbed, 0.0, returns),
        value_mask=is_chosen | is_absorbed,
        policy=policy,
        policy_mask=is_chosen,
    )
