"""PPO: several epochs on each learner cycle's trajectories, with clipped importance weights.

Schulman et al. 2017 (arXiv 1707.06347), with generalised advantages (Schulman et al. 2016, arXiv
1506.02438) normalised in each minibatch.

Values and advantages are computed once per learner cycle, on all rows of its trajectories, with the
parameters that the cycle begins with. A minibatch holds transitions, or whole unrolls with an LSTM.
"""

import jax
import jax.numpy as jnp

from sebulba.agent import Metrics
from sebulba.pytree import pytree_dataclass
from sebulba.toolkit.minibatches import TransitionBatch, check_num_minibatches
from sebulba.toolkit.reductions import masked_moments, mean_share
from sebulba.toolkit.returns import gae
from sebulba.types import RunSpec, Trajectory
from sebulba_agents.actor_critic import ActorCriticAgent, rewards_and_discounts
from sebulba_agents.config import PPOConfig
from sebulba_agents.networks import PolicyValue

_STD_EPSILON = 1e-8


@pytree_dataclass
class Targets:
    """What all epochs of a learner cycle share; stored in place of a trajectory's extras."""

    log_probs: jax.Array  # [T, B] log μ(a_t), of the behaviour policy
    values: jax.Array  # [T, B]
    advantages: jax.Array  # [T, B]


def make_ppo(config: PPOConfig, run_spec: RunSpec) -> ActorCriticAgent:
    """Return the agent.

    Raises:
        ConfigError: the environment does not suit the agent, or a learner device's share of a
            learner cycle cannot be split into minibatches.
    """
    check_num_minibatches(config.num_minibatches, run_spec, of_unrolls=config.lstm_size is not None)
    return ActorCriticAgent(
        config,
        run_spec,
        loss=ppo_loss,
        targets=lambda outputs, trajectory: compute_targets(outputs, trajectory, config),
        num_epochs=config.num_epochs,
        num_minibatches=config.num_minibatches,
    )


def compute_targets(outputs: PolicyValue, trajectory: Trajectory, config: PPOConfig) -> Targets:
    """Return the targets of a trajectory, which all epochs of a learner cycle share.

    Args:
        outputs: for all rows `[T + 1, B]`.
        trajectory: with the behaviour policy in the extras, and normalised rewards.
        config: γ, λ, reward clip.
    """
    rewards, discounts = rewards_and_discounts(trajectory, config)
    return Targets(
        log_probs=trajectory.extras.policy.log_prob(trajectory.action),
        values=outputs.values[:-1],
        advantages=gae(
            rewards=rewards,
            discounts=discounts,
            valid=trajectory.valid,
            values=outputs.values,
            lambda_=config.lambda_,
        ),
    )


def clipped_surrogate(
    ratios: jax.Array, advantages: jax.Array, clip: float | jax.Array
) -> jax.Array:
    """Return the objective `[...]` of each transition, to be maximised: arXiv 1707.06347, eq. 7.

    Args:
        ratios: `[...]`, π(a)/μ(a).
        advantages: `[...]`.
        clip: `[]`, ε.
    """
    return jnp.minimum(ratios * advantages, jnp.clip(ratios, 1.0 - clip, 1.0 + clip) * advantages)


def ppo_loss(
    outputs: PolicyValue,
    minibatch: Trajectory | TransitionBatch,
    config: PPOConfig,
) -> tuple[jax.Array, Metrics]:
    """Return the loss `[]` and metrics: means over the valid transitions of all learner devices.

    Args:
        outputs: for all rows of the minibatch; differentiated.
        minibatch: transitions with `Targets` in the extras.
        config: costs, clip.
    """
    valid, targets = minibatch.valid, minibatch.extras
    # Whole unrolls have one row more than transitions.
    outputs = jax.tree.map(lambda leaf: leaf[: valid.shape[0]], outputs)
    advantages = targets.advantages
    if config.normalize_advantages:
        mean, std = masked_moments(advantages, valid)
        advantages = (advantages - mean) / (std + _STD_EPSILON)
    log_probs = outputs.policy.log_prob(minibatch.action)
    # Masked before `exp`: the gradient of an infinite ratio is NaN even if masked afterwards.
    log_ratios = jnp.where(valid, log_probs - targets.log_probs, 0.0)
    ratios = jnp.exp(log_ratios)
    is_clipped = jnp.abs(ratios - 1.0) > config.clip
    policy_loss = -mean_share(clipped_surrogate(ratios, advantages, config.clip), valid)
    value_loss = mean_share(_value_losses(outputs.values, targets, config.value_clip), valid)
    entropy = mean_share(outputs.policy.entropy(), valid)
    loss = policy_loss + config.baseline_cost * value_loss - config.entropy_cost * entropy
    metrics = {
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy": entropy,
        "value": mean_share(outputs.values, valid),
        # Estimates KL(μ, π) from samples of μ: unbiased and never negative (Schulman 2020,
        # http://joschu.net/blog/kl-approx.html).
        "kl": mean_share(ratios - 1.0 - log_ratios, valid),
        "clip_fraction": mean_share(is_clipped.astype(jnp.float32), valid),
    }
    return loss, metrics


def _value_losses(values: jax.Array, targets: Targets, clip: float | None) -> jax.Array:
    returns = targets.values + targets.advantages
    errors = jnp.square(values - returns)
    if clip is not None:
        clipped = targets.values + jnp.clip(values - targets.values, -clip, clip)
        errors = jnp.maximum(errors, jnp.square(clipped - returns))
    return 0.5 * errors
