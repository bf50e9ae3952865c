"""PPO with one fault each, in its loss or in the order of its samples."""

import dataclasses

import jax
import jax.numpy as jnp

from sebulba.toolkit.reductions import masked_moments
from sebulba.toolkit.returns import VTraceClips, vtrace
from sebulba_agents.actor_critic import rewards_and_discounts
from sebulba_agents.ppo import PPO, ppo_loss
from tests.check.faulty_base import Faulty


class _FaultyPPO(Faulty):
    """PPO with a loss of its own, `self.ppo_loss`, or another order of its samples."""

    def __init__(self, config, run_spec):
        self.sound = PPO(config.sound, run_spec, loss=lambda *args: self.ppo_loss(*args))

    def ppo_loss(self, outputs, batch, config):
        return ppo_loss(outputs, batch, config)


class NormalisesMaskedRows(_FaultyPPO):
    """Normalises advantages over all rows, masked ones included."""

    def ppo_loss(self, outputs, batch, config):
        advantages = batch.extras.advantages
        mean, std = masked_moments(advantages, jnp.ones_like(batch.valid))
        extras = dataclasses.replace(batch.extras, advantages=(advantages - mean) / (std + 1e-8))
        config = dataclasses.replace(config, normalize_advantages=False)
        return super().ppo_loss(outputs, dataclasses.replace(batch, extras=extras), config)


class KeepsTheMean(_FaultyPPO):
    """Divides advantages by their standard deviation, and does not subtract their mean."""

    def ppo_loss(self, outputs, batch, config):
        advantages = batch.extras.advantages
        _, std = masked_moments(advantages, batch.valid)
        extras = dataclasses.replace(batch.extras, advantages=advantages / (std + 1e-8))
        config = dataclasses.replace(config, normalize_advantages=False)
        return super().ppo_loss(outputs, dataclasses.replace(batch, extras=extras), config)


class IgnoresPenalties(_FaultyPPO):
    """Learns from positive advantages only."""

    def ppo_loss(self, outputs, batch, config):
        advantages = jnp.maximum(batch.extras.advantages, 0.0)
        extras = dataclasses.replace(batch.extras, advantages=advantages)
        return super().ppo_loss(outputs, dataclasses.replace(batch, extras=extras), config)


class ExchangesPolicies(_FaultyPPO):
    """Takes the behaviour policy for the proximal one, and the other way round."""

    def ppo_loss(self, outputs, batch, config):
        log_rhos = jnp.log(batch.extras.weights)
        extras = dataclasses.replace(
            batch.extras,
            log_probs=batch.extras.log_probs - log_rhos,
            weights=jnp.exp(-log_rhos),
        )
        return super().ppo_loss(outputs, dataclasses.replace(batch, extras=extras), config)


class ClipsWeightsFromBelow(_FaultyPPO):
    """Takes 1 for the least weight of a transition, not for the greatest."""

    def ppo_loss(self, outputs, batch, config):
        weights = jnp.maximum(batch.extras.weights, 1.0)
        extras = dataclasses.replace(batch.extras, weights=weights)
        return super().ppo_loss(outputs, dataclasses.replace(batch, extras=extras), config)


class ClipsTargetsFromBelow(_FaultyPPO):
    """Takes 1 for the least ratio in the targets of V-trace, not for the greatest."""

    def __init__(self, config, run_spec):
        super().__init__(config, run_spec)
        self.sound_targets, self.sound._with_targets = self.sound._with_targets, self.with_targets
        self.config = config.sound

    def with_targets(self, networks, memory, trajectory):
        after = self.sound_targets(networks, memory, trajectory)
        outputs = self.sound.unroll_trajectory(networks, memory, trajectory)
        proximal = jax.tree.map(lambda leaf: leaf[:-1], outputs.policy)
        log_rhos = proximal.log_prob(trajectory.action)
        log_rhos = log_rhos - trajectory.extras.policy.log_prob(trajectory.action)
        rewards, discounts = rewards_and_discounts(trajectory, self.config)
        returns = vtrace(
            log_rhos=jnp.maximum(log_rhos, 0.0),
            rewards=rewards,
            discounts=discounts,
            valid=trajectory.valid,
            values=outputs.values,
            lambda_=self.config.lambda_,
            clips=VTraceClips(rho=jnp.inf, c=jnp.inf),
        ).values
        return dataclasses.replace(after, extras=dataclasses.replace(after.extras, returns=returns))


class TakesNewValues(_FaultyPPO):
    """Subtracts the values of the parameters that are learned from the returns."""

    def ppo_loss(self, outputs, batch, config):
        old = batch.extras
        values = jax.lax.stop_gradient(outputs.values[: batch.valid.shape[0]])
        returns = old.values + old.advantages if old.returns is None else old.returns
        extras = dataclasses.replace(
            old, advantages=old.advantages + old.values - values, returns=returns
        )
        return super().ppo_loss(outputs, dataclasses.replace(batch, extras=extras), config)


class DrawsWithReplacement(_FaultyPPO):
    """Draws every minibatch from all samples."""

    def loss(self, networks, experience, key, clock):
        if experience.order is None:
            return self.sound.loss(networks, experience, key, clock)
        order = experience.order
        drawn = jax.random.randint(jax.random.fold_in(key, 1), order.shape, 0, order.size)
        changed = dataclasses.replace(experience, order=drawn)
        return self.sound.loss(networks, changed, key, clock)


class LeavesOneOut(_FaultyPPO):
    """Learns from the first sample of an epoch twice, and never from the last."""

    def loss(self, networks, experience, key, clock):
        if experience.order is None:
            return self.sound.loss(networks, experience, key, clock)
        order = experience.order
        order = jnp.where(order == order.size - 1, 0, order)
        return self.sound.loss(networks, dataclasses.replace(experience, order=order), key, clock)
