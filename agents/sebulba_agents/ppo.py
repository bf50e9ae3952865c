"""PPO: several epochs on each learner cycle's trajectories, with clipped importance weights.

Schulman et al. 2017 (arXiv 1707.06347), with generalised advantages (Schulman et al. 2016, arXiv
1506.02438) normalised in each minibatch.

Values and advantages are computed once per learner cycle, on all rows of its trajectories, with the
parameters that the cycle begins with. A minibatch holds transitions, or whole unrolls with a core.

Three policies matter if actors act with older parameters: the one that is learned, π; the
behaviour policy μ, which acted; and the proximal policy, that of the parameters that the learner
cycle begins with. The decoupled objective (Hilton et al. 2022, arXiv 2110.00641) keeps π near the
proximal policy instead of μ. V-trace targets correct for the ratio of the proximal policy to μ, as
in the APPO of Petrenko et al. 2020 (arXiv 2006.11751).
"""

import dataclasses

import jax
import jax.numpy as jnp

from sebulba.agent import Metrics
from sebulba.pytree import pytree_dataclass
from sebulba.toolkit.minibatches import (
    TransitionBatch,
    check_num_minibatches,
    choose_environments,
    choose_transitions,
    next_minibatch,
    with_orders,
)
from sebulba.toolkit.reductions import masked_moments, mean_share
from sebulba.toolkit.returns import VTraceClips, gae, ratio_of, vtrace
from sebulba.toolkit.spaces import zeros
from sebulba.toolkit.window import Window
from sebulba.types import Clock, RunSpec, Trajectory
from sebulba_agents.actor_critic import (
    ActorCriticAgent,
    ActorCriticNetworks,
    ActorCriticState,
    Loss,
    Memory,
    check_standardisation,
    rewards_and_discounts,
    with_scaled_rewards,
)
from sebulba_agents.config import PPOConfig
from sebulba_agents.networks import PolicyValue

_STD_EPSILON = 1e-8


@pytree_dataclass
class Targets:
    """What all epochs of a learner cycle share; stored in place of a trajectory's extras."""

    log_probs: jax.Array  # [T, B] of a_t, by the policy that π stays near
    values: jax.Array  # [T, B]
    advantages: jax.Array  # [T, B]
    returns: jax.Array | None = None  # [T, B] value targets; None: values + advantages
    weights: jax.Array | None = None  # [T, B] of the policy's loss; None: 1


def compute_targets(outputs: PolicyValue, trajectory: Trajectory, config: PPOConfig) -> Targets:
    """Return the targets of a trajectory, which all epochs of a learner cycle share.

    Args:
        outputs: those of the network that the cycle begins with, for all rows `[T + 1, B]`.
        trajectory: with the behaviour policy in the extras, and normalised rewards.
        config: γ, λ, reward clip, objective, targets and their clips.
    """
    rewards, discounts = rewards_and_discounts(trajectory, config)
    valid, values, action = trajectory.valid, outputs.values, trajectory.action
    log_probs = trajectory.extras.policy.log_prob(action)
    proximal = jax.tree.map(lambda leaf: leaf[:-1], outputs.policy)
    log_rhos = jnp.where(valid, proximal.log_prob(action) - log_probs, 0.0)
    weights = returns = None
    if config.objective == "decoupled":
        log_probs = log_probs + log_rhos
        weights = ratio_of(log_rhos, config.clip_pg_rho)
    streams = {"rewards": rewards, "discounts": discounts, "valid": valid, "values": values}
    if config.targets == "gae":
        advantages = gae(**streams, lambda_=config.lambda_)
    else:
        clips = VTraceClips(rho=config.clip_rho, c=config.clip_c)
        returns = vtrace(log_rhos=log_rhos, **streams, lambda_=config.lambda_, clips=clips).values
        # The ratio to the behaviour policy is part of the objective, not of the advantages. With
        # equal policies they are those of `gae`.
        corrections = jnp.append(returns[1:] - values[1:-1], jnp.zeros_like(values[:1]), axis=0)
        next_values = values[1:] + config.lambda_ * corrections
        advantages = jnp.where(valid, rewards + discounts * next_values - values[:-1], 0.0)
    return Targets(
        log_probs=log_probs,
        values=values[:-1],
        advantages=advantages,
        returns=returns,
        weights=weights,
    )


def clipped_surrogate(
    ratios: jax.Array, advantages: jax.Array, clip: float | jax.Array
) -> jax.Array:
    """Return the objective `[...]` of each transition, to be maximised: arXiv 1707.06347, eq. 7.

    Args:
        ratios: `[...]`, of π(a) to the probability by the policy that π stays near.
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
        outputs: the network's, for all rows of the minibatch; differentiated.
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
    ratios = ratio_of(log_ratios)
    is_clipped = jnp.abs(ratios - 1.0) > config.clip
    weights = jnp.ones_like(ratios) if targets.weights is None else targets.weights
    surrogates = weights * clipped_surrogate(ratios, advantages, config.clip)
    policy_loss = -mean_share(surrogates, valid)
    value_loss = mean_share(_value_losses(outputs.values, targets, config.value_clip), valid)
    entropy = mean_share(outputs.policy.entropy(), valid)
    loss = policy_loss + config.baseline_cost * value_loss - config.entropy_cost * entropy
    metrics = {
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy": entropy,
        "value": mean_share(outputs.values, valid),
        # Estimates the KL divergence of π from samples of μ: unbiased unless weights are clipped,
        # and never negative (Schulman 2020, http://joschu.net/blog/kl-approx.html).
        "kl": mean_share(weights * (ratios - 1.0 - log_ratios), valid),
        "clip_fraction": mean_share(is_clipped.astype(jnp.float32), valid),
    }
    if targets.weights is not None:
        metrics["rho"] = mean_share(weights, valid)
    return loss, metrics


def _value_losses(values: jax.Array, targets: Targets, clip: float | None) -> jax.Array:
    returns = targets.returns
    if returns is None:
        returns = targets.values + targets.advantages
    errors = jnp.square(values - returns)
    if clip is not None:
        clipped = targets.values + jnp.clip(values - targets.values, -clip, clip)
        errors = jnp.maximum(errors, jnp.square(clipped - returns))
    return 0.5 * errors


class PPO(ActorCriticAgent):
    """An actor-critic that learns from each learner cycle's trajectories in several epochs."""

    _config: PPOConfig

    def __init__(self, config: PPOConfig, run_spec: RunSpec, *, loss: Loss = ppo_loss):
        """Build network and optimizer.

        Args:
            config: settings of network, optimizer and epochs.
            run_spec: the run's.
            loss: the loss of a minibatch.

        Raises:
            ConfigError: the environment does not suit the agent, or a learner device's share of a
                learner cycle cannot be split into minibatches.
        """
        check_num_minibatches(
            config.num_minibatches, run_spec, of_unrolls=config.lstm_size is not None
        )
        if config.normalize_advantages:
            check_standardisation(
                "normalize_advantages standardises the advantages of minibatches",
                run_spec,
                num_minibatches=config.num_minibatches,
            )
        num_updates = config.num_epochs * config.num_minibatches
        super().__init__(config, run_spec, loss=loss, num_updates_per_cycle=num_updates)

    def init_experience(self, networks: ActorCriticNetworks, num_envs: int) -> Window:
        """Return a window of zeros for one learner cycle's trajectories, with targets as extras."""
        window = super().init_experience(networks, num_envs)
        learned = jax.eval_shape(self._with_targets, networks, window.initial, window.trajectory)
        trajectory = dataclasses.replace(window.trajectory, extras=zeros(learned.extras))
        window = dataclasses.replace(window, trajectory=trajectory)
        return zeros(jax.eval_shape(self._with_orders, window, jax.random.key(0)))

    def update_experience(
        self,
        networks: ActorCriticNetworks,
        experience: Window,
        initial_state: ActorCriticState,
        final_state: ActorCriticState,
        trajectory: Trajectory,
        actor_id: jax.Array,
    ) -> Window:
        """Push the trajectory, with its targets as extras, into the window."""
        trajectory = self._with_targets(networks, initial_state.memory, trajectory)
        window = super().update_experience(
            networks, experience, initial_state, final_state, trajectory, actor_id
        )
        return self._with_orders(window, initial_state.key)

    def loss(
        self, networks: ActorCriticNetworks, experience: Window, key: jax.Array, clock: Clock
    ) -> tuple[jax.Array, tuple[Window, Metrics]]:
        """Return the loss of the next minibatch."""
        if self._config.num_minibatches == 1:
            return super().loss(networks, experience, key, clock)
        chosen = next_minibatch(experience, clock, self._config.num_minibatches)
        batch: Trajectory | TransitionBatch
        if self._config.lstm_size is not None:
            unrolls = choose_environments(experience, chosen)
            batch = unrolls.trajectory
            outputs = self.unroll_trajectory(networks, unrolls.initial, batch)
        else:
            batch = choose_transitions(experience, chosen)
            # A feed-forward network does not look at the last action.
            outputs, _ = self.unroll(networks, batch.env_steps, jnp.zeros_like(batch.action), ())
        batch = with_scaled_rewards(networks, batch)
        loss, metrics = self._loss(outputs, batch, self._config_at(clock))
        return loss, (experience, metrics)

    def _with_orders(self, window: Window, key: jax.Array) -> Window:
        # One minibatch is the window as it is: no shuffling, and no gather of all its rows.
        if self._config.num_minibatches == 1:
            return window
        return with_orders(
            window,
            key,
            num_epochs=self._config.num_epochs,
            of_unrolls=self._config.lstm_size is not None,
        )

    def _with_targets(
        self, networks: ActorCriticNetworks, memory: Memory, trajectory: Trajectory
    ) -> Trajectory:
        """Return the trajectory with targets in place of extras; its rewards stay raw."""
        outputs = self.unroll_trajectory(networks, memory, trajectory)
        targets = compute_targets(outputs, with_scaled_rewards(networks, trajectory), self._config)
        return dataclasses.replace(trajectory, extras=targets)
