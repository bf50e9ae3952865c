"""Replay agents with one fault each, in their draws, targets or target networks."""

import dataclasses

import jax
import jax.numpy as jnp

from sebulba.toolkit import replay
from sebulba.toolkit.replay.rows import valid_transitions
from sebulba.toolkit.returns import n_step_returns
from tests.check.faulty_base import Faulty


class PrioritiesOfOthers(Faulty):
    """Gives each sampled sequence the priority of the one before it in the batch."""

    def loss(self, networks, experience, key, clock):
        agent = self.sound
        sample = replay.sample(agent._replay_spec, experience, key, agent._batch_size)
        loss, priority, metrics = agent.loss_of_sample(networks, sample, 0.6)
        experience = replay.update_priorities(
            agent._replay_spec, experience, sample.ids, jnp.roll(priority, 1)
        )
        return loss, (experience, metrics)


class IgnoresImportance(Faulty):
    """Counts all draws alike, however likely they were."""

    def __init__(self, config, run_spec):
        super().__init__(config, run_spec)
        sound = self.sound.loss_of_batch

        def loss_of_batch(networks, batch, *args):
            weight = (batch.weight > 0.0).astype(jnp.float32)
            return sound(networks, dataclasses.replace(batch, weight=weight), *args)

        self.sound.loss_of_batch = loss_of_batch


class IgnoresImportanceOfSequences(Faulty):
    """Counts all drawn sequences alike."""

    def __init__(self, config, run_spec):
        super().__init__(config, run_spec)
        self.sound._weights = lambda sample, experience: replay.uniform_weights(
            sample.probability, sample.num_sequences
        )


class UnrollsIntoTheNextEpisode(Faulty):
    """Learns what follows a termination in place of an absorbing state; returns are right."""

    def __init__(self, config, run_spec):
        super().__init__(config, run_spec)
        sound, settings = self.sound._targets, config.sound

        def targets(key, rows, planned):
            found, steps = sound(key, rows, planned), rows.env_step
            valid = valid_transitions(steps)
            returns = n_step_returns(
                rewards=steps.reward[1:],
                discounts=settings.discount * (1.0 - steps.terminated[1:].astype(jnp.float32)),
                valid=valid,
                bootstrap_values=planned.value[1:],
                n=settings.n_step,
            )
            last = settings.unroll_length
            return dataclasses.replace(
                found,
                action=rows.action[:last],
                reward=steps.reward[1 : last + 1],
                reward_mask=valid[:last],
                value=returns[: last + 1],
                value_mask=valid[: last + 1],
                policy_mask=valid[: last + 1],
            )

        self.sound._targets = targets


class _OtherTargets(Faulty):
    """Has other targets of its critics."""

    def __init__(self, config, run_spec):
        super().__init__(config, run_spec)
        self.sound.targets = self.targets

    def targets(self, networks, batch, following, *, action=None, least=jnp.min, weight=1.0):
        action = following.action if action is None else action
        q = self.sound._critics.apply(networks.target_critics, batch.next_observation, action)
        temperature = weight * jnp.exp(networks.online.log_temperature)
        value = least(q, axis=0) - temperature * following.log_prob
        return jax.lax.stop_gradient(batch.reward + batch.discount * value)


class TakesTheGreaterTwin(_OtherTargets):
    """Takes the greater of two critics."""

    def targets(self, networks, batch, following):
        return super().targets(networks, batch, following, least=jnp.max)


class TargetWithoutEntropy(_OtherTargets):
    """Leaves the entropy of the next action out."""

    def targets(self, networks, batch, following):
        return super().targets(networks, batch, following, weight=0.0)


class TargetOfStoredAction(_OtherTargets):
    """Takes the value of the stored action in the next observation."""

    def targets(self, networks, batch, following):
        return super().targets(networks, batch, following, action=batch.action)


class IgnoresStoredState(Faulty):
    """Unrolls sequences from a zero state instead of the stored one."""

    def loss(self, networks, experience, key, clock):
        nothing = jax.tree.map(jnp.zeros_like, experience.recurrent)
        changed = dataclasses.replace(experience, recurrent=nothing)
        loss, (after, metrics) = self.sound.loss(networks, changed, key, clock)
        after = dataclasses.replace(after, recurrent=experience.recurrent)
        return loss, (after, metrics)


class FrozenTarget(Faulty):
    """Never updates its target network."""

    def optimize(self, networks, *args):
        after, opt_state = self.sound.optimize(networks, *args)
        return dataclasses.replace(after, target=networks.target), opt_state


class StepsFromTarget(Faulty):
    """Adds its step to the target network."""

    def optimize(self, networks, *args):
        from_target = dataclasses.replace(networks, online=networks.target)
        return self.sound.optimize(from_target, *args)


class ActsWithTarget(Faulty):
    """Gives the actors the target network."""

    def actor_networks(self, networks):
        return networks.target


class FollowsAtOnce(Faulty):
    """Copies to the target network after every update."""

    def optimize(self, networks, *args):
        after, opt_state = self.sound.optimize(networks, *args)
        return dataclasses.replace(after, target=after.online), opt_state
