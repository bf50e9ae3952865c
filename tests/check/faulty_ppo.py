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
    """PPO that learns from other `targets`, or from its samples in another order."""

    normalises = True  # advantages, after `targets`, if the settings say so

    def __init__(self, config, run_spec):
        self.sound = PPO(config.sound, run_spec, loss=self.ppo_loss)

    def ppo_loss(self, outputs, batch, config):
        batch = dataclasses.replace(batch, extras=self.targets(batch.extras, outputs, batch))
        if not self.normalises:
            config = dataclasses.replace(config, normalize_advantages=False)
        return ppo_loss(outputs, batch, config)

    def targets(self, old, outputs, batch):
        return old


class NormalisesMaskedRows(_FaultyPPO):
    """Normalises advantages over all rows, masked ones included."""

    normalises = False

    def targets(self, old, outputs, batch):
        mean, std = masked_moments(old.advantages, jnp.ones_like(batch.valid))
        return dataclasses.replace(old, advantages=(old.advantages - mean) / (std + 1e-8))


class KeepsTheMean(_FaultyPPO):
    """Divides advantages by their standard deviation, and does not subtract their mean."""

    normalises = False

    def targets(self, old, outputs, batch):
        _, std = masked_moments(old.advantages, batch.valid)
        return dataclasses.replace(old, advantages=old.advantages / (std + 1e-8))


class IgnoresPenalties(_FaultyPPO):
    """Learns from positive advantages only."""

    def targets(self, old, outputs, batch):
        return dataclasses.replace(old, advantages=jnp.maximum(old.advantages, 0.0))


class AddsValues(_FaultyPPO):
    """Adds the value of the observation to an advantage, and does not subtract it."""

    def targets(self, old, outputs, batch):
        return dataclasses.replace(
            old, advantages=old.advantages + 2.0 * old.values, returns=_returns(old)
        )


class TakesNewValues(_FaultyPPO):
    """Subtracts the values of the parameters that are learned from the returns."""

    def targets(self, old, outputs, batch):
        values = jax.lax.stop_gradient(outputs.values[: batch.valid.shape[0]])
        return dataclasses.replace(
            old, advantages=old.advantages + old.values - values, returns=_returns(old)
        )


def _returns(targets):
    return targets.values + targets.advantages if targets.returns is None else targets.returns


class ExchangesPolicies(_FaultyPPO):
    """Takes the behaviour policy for the proximal one, and the other way round."""

    def targets(self, old, outputs, batch):
        log_rhos = jnp.log(old.weights)
        return dataclasses.replace(
            old, log_probs=old.log_probs - log_rhos, weights=jnp.exp(-log_rhos)
        )


class ClipsWeightsFromBelow(_FaultyPPO):
    """Takes 1 for the least weight of a transition, not for the greatest."""

    def targets(self, old, outputs, batch):
        return dataclasses.replace(old, weights=jnp.maximum(old.weights, 1.0))


class WeighsTwice(_FaultyPPO):
    """Multiplies by the weight of a transition twice."""

    def targets(self, old, outputs, batch):
        return dataclasses.replace(old, weights=jnp.square(old.weights))


class _FaultyTargets(_FaultyPPO):
    """PPO with a fault in the targets of whole trajectories."""

    def __init__(self, config, run_spec):
        super().__init__(config, run_spec)
        self.config = config.sound
        self.sound_targets, self.sound._with_targets = self.sound._with_targets, self.with_targets

    def with_targets(self, networks, memory, trajectory):
        after = self.sound_targets(networks, memory, trajectory)
        outputs = self.sound.unroll_trajectory(networks, memory, trajectory)
        changed = self.trajectory_targets(after.extras, outputs, trajectory)
        return dataclasses.replace(after, extras=changed)


class ClipsTargetsFromBelow(_FaultyTargets):
    """Takes 1 for the least ratio in the targets of V-trace, not for the greatest."""

    def trajectory_targets(self, old, outputs, trajectory):
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
        return dataclasses.replace(old, returns=returns)


class BootstrapsFromItself(_FaultyTargets):
    """Adds the value of the same observation to an advantage, not that of the next one."""

    def trajectory_targets(self, old, outputs, trajectory):
        _, discounts = rewards_and_discounts(trajectory, self.config)
        values, next_values = outputs.values[:-1], outputs.values[1:]
        advantages = old.advantages + discounts * (values - next_values)
        return dataclasses.replace(old, advantages=advantages, returns=_returns(old))


class DrawsWithReplacement(_FaultyPPO):
    """Draws every minibatch from all samples."""

    def loss(self, networks, experience, key, clock):
        if experience.order is None:
            return self.sound.loss(networks, experience, key, clock)
        order = experience.order
        drawn = jax.random.randint(jax.random.fold_in(key, 1), order.shape, 0, order.max() + 1)
        changed = dataclasses.replace(experience, order=drawn)
        return self.sound.loss(networks, changed, key, clock)


class LeavesOneOut(_FaultyPPO):
    """Learns from the first sample of an epoch twice, and never from the last."""

    def loss(self, networks, experience, key, clock):
        if experience.order is None:
            return self.sound.loss(networks, experience, key, clock)
        order = experience.order
        order = jnp.where(order == order.max(), 0, order)
        return self.sound.loss(networks, dataclasses.replace(experience, order=order), key, clock)
