"""Wrappers without a fault, of which a question could think that they have one."""

import dataclasses

import jax
import jax.numpy as jnp

from sebulba.errors import ConfigError
from tests.check.faulty_base import Faulty, with_trajectory


class RewardsObservations(Faulty):
    """Rewards every observation, final ones too, and declares it."""

    learns_from_final_observations = True

    def update_experience(self, *args):
        return with_trajectory(self, add_reward)(*args)


def add_reward(env_steps):
    """Return the rows with the mean of each observation added to its reward."""
    bonus = jnp.mean(env_steps.observation, axis=-1)
    return dataclasses.replace(env_steps, reward=env_steps.reward + bonus)


class RoundsAtTerminations(Faulty):
    """Uses terminal observations in its loss, as far as rounding goes.

    A projection of returns onto atoms does, whose probabilities add up to 1 only nearly.
    """

    def loss(self, networks, experience, key, clock):
        loss, aux = self.sound.loss(networks, experience, key, clock)
        rows = experience.trajectory.env_steps
        terminal = jnp.where(rows.terminated[..., None], rows.observation, 0.0)
        return loss * (1.0 + 1e-7 * terminal.sum()), aux


class StandardisesRewards(Faulty):
    """Divides rewards by their standard deviation in the trajectory."""

    def update_experience(self, *args):
        def standardise(env_steps):
            reward = env_steps.reward / env_steps.reward.std()
            return dataclasses.replace(env_steps, reward=reward)

        return with_trajectory(self, standardise)(*args)


class RefusesGreatEntropyCosts(Faulty):
    """Validates its settings."""

    def __init__(self, config, run_spec):
        super().__init__(config, run_spec)
        if not 0.0 <= config.sound.entropy_cost <= 1.0:
            raise ConfigError(
                f"agent.entropy_cost: expected 0 to 1, got {config.sound.entropy_cost}"
            )


class DeadUnits(Faulty):
    """Has a ReLU that cuts a leaf off until the leaf grows."""

    def loss(self, networks, experience, key, clock):
        leaves, structure = jax.tree.flatten(networks)
        leaves[0] = jax.nn.relu(leaves[0] - 0.2)
        revived = jax.tree.unflatten(structure, leaves)
        return self.sound.loss(revived, experience, key, clock)


class WeighsByTarget(Faulty):
    """Has a target network that is of no use if the discount is 0.

    The target network weighs the loss, since IMPALA has no other use of one.
    """

    def __init__(self, config, run_spec):
        super().__init__(config, run_spec)
        self.discount = config.sound.discount

    def init_networks(self, key):
        online = self.sound.init_networks(key)
        return {"online": online, "target": online}

    def init_opt_state(self, networks):
        return self.sound.init_opt_state(networks["online"])

    def init_experience(self, networks, num_envs):
        return self.sound.init_experience(networks["online"], num_envs)

    def actor_networks(self, networks):
        return networks["online"]

    def update_experience(self, networks, *args):
        return self.sound.update_experience(networks["online"], *args)

    def loss(self, networks, experience, key, clock):
        loss, aux = self.sound.loss(networks["online"], experience, key, clock)
        target = sum(leaf.sum() for leaf in jax.tree.leaves(networks["target"]))
        return loss * (1.0 + self.discount * jax.lax.stop_gradient(target)), aux

    def optimize(self, networks, opt_state, grads, experience, clock):
        arguments = networks["online"], opt_state, grads["online"], experience, clock
        online, opt_state = self.sound.optimize(*arguments)
        return {"online": online, "target": online}, opt_state
