"""Sound agents with continuous actions whose values see more of the policy than those of TD3."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from sebulba.toolkit.optimizers import descend
from sebulba.toolkit.reductions import masked_feature_mean
from sebulba.toolkit.spaces import zeros
from tests.check.sound_agents import TD3, Head, Networks

_PENALTY = 0.1


class SharedEncoder(TD3):
    """DrQ-v2's encoder (Yarats et al. 2022, arXiv 2107.09645), which the critics train alone."""

    def __init__(self, config, run_spec):
        super().__init__(config, run_spec)
        self.encoder = Head((8,), config.num_units)

    def init_networks(self, key):
        observation = zeros(self.run_spec.environment.observation, 1)
        action = jnp.zeros((1, *self.run_spec.environment.action_space.shape))
        keys, features = jax.random.split(key, 3), jnp.zeros((1, 8))
        online = {
            "encoder": self.encoder.init(keys[0], observation),
            "policy": self.policy.init(keys[1], features),
            "critic": self.critic.init(keys[2], features, action),
        }
        return Networks(online=online, target=jax.tree.map(jnp.copy, online))

    def actor_networks(self, networks):
        return {name: networks.online[name] for name in ("encoder", "policy")}

    def greedy_action(self, networks, observation):
        features = self.encoder.apply(networks["encoder"], observation)
        return super().greedy_action(networks["policy"], features)

    def losses(self, networks, batch, key):
        online, target = networks.online, jax.lax.stop_gradient(networks.target)
        following = self.encoder.apply(target["encoder"], batch.next_observation)
        action = jnp.tanh(self.policy.apply(target["policy"], following))
        value = self.critic.apply(target["critic"], following, action)
        features = self.encoder.apply(online["encoder"], batch.observation)
        taken = self.critic.apply(online["critic"], features, batch.action)
        errors = batch.reward + batch.discount * value - taken
        features = jax.lax.stop_gradient(features)
        greedy = jnp.tanh(self.policy.apply(online["policy"], features))
        gain = self.critic.apply(jax.lax.stop_gradient(online["critic"]), features, greedy)
        return jnp.square(errors) - gain, errors


class Penalty(TD3):
    """The penalty of CQL (Kumar et al. 2020, arXiv 2006.04779): lower values of other actions."""

    def losses(self, networks, batch, key):
        td3_key, action_key = jax.random.split(key)
        losses, errors = super().losses(networks, batch, td3_key)
        policy, critic = networks.online["policy"], networks.online["critic_1"]
        own = jnp.tanh(self.policy.apply(jax.lax.stop_gradient(policy), batch.observation))
        random = jax.random.uniform(action_key, own.shape, minval=-1.0)
        others = [self.critic.apply(critic, batch.observation, each) for each in (own, random)]
        taken = self.critic.apply(critic, batch.observation, batch.action)
        penalty = jax.nn.logsumexp(jnp.stack(others), axis=0) - taken
        return losses + _PENALTY * penalty, errors


class NormalizedHead(nn.Module):
    """As `Head`, with one output, which depends on the moments of the batch."""

    num_units: int

    @nn.compact
    def __call__(self, *inputs):
        x = nn.Dense(self.num_units)(jnp.concatenate(inputs, axis=-1))
        every = jnp.ones(len(x), bool)
        x = x - masked_feature_mean(x, every)
        x = x * jax.lax.rsqrt(masked_feature_mean(jnp.square(x), every) + 1e-3)
        return nn.Dense(1)(nn.relu(x))[..., 0]


class CrossQ(TD3):
    """CrossQ (Bhatt et al. 2024, arXiv 1902.05605): moments of both batches, no target networks."""

    learns_from_final_observations = True  # The moments of the batch include them.

    def __init__(self, config, run_spec):
        super().__init__(config, run_spec)
        self.critic = NormalizedHead(config.num_units)

    def init_networks(self, key):
        return Networks(online=super().init_networks(key).online, target={})

    def losses(self, networks, batch, key):
        policy, online = networks.online["policy"], networks.online["critic_1"]
        following = jnp.tanh(self.policy.apply(policy, batch.next_observation))
        following = jax.lax.stop_gradient(following)
        observations = jnp.concatenate([batch.observation, batch.next_observation])

        def both(critic, action):
            actions = jnp.concatenate([action, following])
            return jnp.split(self.critic.apply(critic, observations, actions), 2)

        taken, value = both(online, batch.action)
        errors = batch.reward + batch.discount * jax.lax.stop_gradient(value) - taken
        greedy = jnp.tanh(self.policy.apply(policy, batch.observation))
        gain, _ = both(jax.lax.stop_gradient(online), greedy)
        return jnp.square(errors) - gain, errors

    def optimize(self, networks, opt_state, grads, experience, clock):
        online, opt_state = descend(self.optimizer, networks.online, opt_state, grads.online)
        return Networks(online=online, target={}), opt_state


class QuadraticHead(nn.Module):
    """Values, and the mean and the curvature of a quadratic advantage."""

    num_actions: int
    num_units: int

    @nn.compact
    def __call__(self, observation):
        x = nn.relu(nn.Dense(self.num_units)(observation.reshape(len(observation), -1)))
        mean, curvature = (nn.Dense(self.num_actions)(x) for _ in range(2))
        return nn.Dense(1)(x)[..., 0], jnp.tanh(mean), jnp.exp(curvature)


class Quadratic(TD3):
    """NAF (Gu et al. 2016, arXiv 1603.00748) with a diagonal: its values are its policy."""

    def __init__(self, config, run_spec):
        super().__init__(config, run_spec)
        (num_actions,) = run_spec.environment.action_space.shape
        self.network = QuadraticHead(num_actions, config.num_units)

    def init_networks(self, key):
        online = self.network.init(key, zeros(self.run_spec.environment.observation, 1))
        return Networks(online=online, target=jax.tree.map(jnp.copy, online))

    def actor_networks(self, networks):
        return networks.online

    def greedy_action(self, networks, observation):
        _, action, _ = self.network.apply(networks, observation)
        return action

    def losses(self, networks, batch, key):
        value, mean, curvature = self.network.apply(networks.online, batch.observation)
        following, _, _ = self.network.apply(networks.target, batch.next_observation)
        away = jnp.sum(curvature * jnp.square(batch.action - mean), axis=-1)
        target = jax.lax.stop_gradient(batch.reward + batch.discount * following)
        errors = target - (value - 0.5 * away)
        return optax.l2_loss(errors), errors
