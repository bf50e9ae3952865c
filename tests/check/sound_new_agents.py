"""Sound agents that a question once accused, written from papers and the page about agents."""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from sebulba.pytree import pytree_dataclass
from sebulba.toolkit.distributions import Categorical
from sebulba.toolkit.optimizers import descend
from sebulba.toolkit.reductions import masked_mean, masked_moments, mean_share
from sebulba.toolkit.returns import gae
from sebulba.toolkit.spaces import zeros
from tests.check.small_agents import ImportanceAgent, KeyState
from tests.check.sound_agents import C51, DistributionConfig, Head, Networks

_MODULE = "tests.check.sound_new_agents"


@dataclasses.dataclass(frozen=True, kw_only=True)
class MunchausenConfig(DistributionConfig):
    """Settings of `Munchausen`."""

    name: str = f"{_MODULE}:Munchausen"
    temperature: float = 0.03
    bonus: float = 0.9
    """α, the weight of the log-probability of the action taken."""


class Munchausen(C51):
    """DQN whose rewards contain log-probabilities (Vieillard et al. 2020, arXiv 2007.14430)."""

    Config = MunchausenConfig

    def __init__(self, config, run_spec):
        super().__init__(config, run_spec)
        self.network = Head((self.num_actions,), config.num_units)

    def values(self, outputs):
        return outputs

    def losses(self, networks, batch, key):
        config, target = self.config, jax.lax.stop_gradient(networks.target)
        each = jnp.arange(len(batch.reward))
        logits = self.network.apply(target, batch.observation) / config.temperature
        log_prob = jax.nn.log_softmax(logits)[each, batch.action]
        bonus = config.bonus * jnp.clip(config.temperature * log_prob, -1.0, 0.0)
        q = self.network.apply(target, batch.next_observation)
        log_probs = jax.nn.log_softmax(q / config.temperature)
        value = jnp.sum(jnp.exp(log_probs) * (q - config.temperature * log_probs), axis=-1)
        returns = batch.reward + bonus + batch.discount * value
        taken = self.network.apply(networks.online, batch.observation)[each, batch.action]
        return optax.huber_loss(taken, returns), returns - taken


class _Attention(nn.Module):
    """Self-attention over the numbers of an observation, then a policy's logits and a value."""

    num_actions: int

    @nn.compact
    def __call__(self, x):
        shape, size = x.shape[:-1], x.shape[-1]
        tokens = nn.Dense(8)(x.reshape(-1, size, 1) * jnp.eye(size)[None])
        tokens = tokens + nn.MultiHeadDotProductAttention(num_heads=2)(nn.LayerNorm()(tokens))
        x = nn.LayerNorm()(tokens).mean(axis=1).reshape(*shape, 8)
        return Categorical(logits=nn.Dense(self.num_actions)(x)), nn.Dense(1)(x)[..., 0]


@pytree_dataclass
class LogProbAndValue:
    log_prob: jax.Array  # [B]
    value: jax.Array  # [B]


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionPPOConfig:
    """Settings of `AttentionPPO`."""

    name: str = f"{_MODULE}:AttentionPPO"
    discount: float = 0.95
    clip: float = 0.2
    entropy_cost: float = 0.01


class AttentionPPO(ImportanceAgent):
    """PPO (Schulman et al. 2017, arXiv 1707.06347) that bootstraps from the values of acting.

    It takes four updates with all transitions.
    """

    Config = AttentionPPOConfig

    def __init__(self, config, run_spec):
        super().__init__(config, run_spec)
        self.network = _Attention(int(run_spec.environment.action_space.n))

    def act(self, networks, actor_state, env_step, *, greedy):
        policy, value = self.network.apply(networks, env_step.observation)
        key, action_key = jax.random.split(actor_state.key)
        action = policy.mode() if greedy else policy.sample(action_key)
        extras = LogProbAndValue(log_prob=policy.log_prob(action), value=value)
        return action, extras, KeyState(key=key)

    def loss(self, networks, experience, key, clock):
        trajectory = experience.trajectory
        rows, valid, extras = trajectory.env_steps, trajectory.valid, trajectory.extras
        policy, values = self.network.apply(networks, rows.observation)
        # Nothing has acted on the last row yet.
        old = jnp.concatenate([extras.value, jax.lax.stop_gradient(values[-1:])])
        advantages = gae(
            rewards=rows.reward[1:],
            discounts=jnp.where(rows.terminated[1:], 0.0, self.config.discount),
            valid=valid,
            values=old,
            lambda_=0.9,
        )
        errors = old[:-1] + advantages - values[:-1]
        mean, std = masked_moments(advantages, valid)
        advantages = (advantages - mean) / (std + 1e-6)
        policy = Categorical(logits=policy.logits[:-1])
        log_ratios = policy.log_prob(trajectory.action) - extras.log_prob
        ratios = jnp.exp(jnp.where(valid, log_ratios, 0.0))
        clipped = jnp.clip(ratios, 1.0 - self.config.clip, 1.0 + self.config.clip)
        gains = jnp.minimum(ratios * advantages, clipped * advantages)
        losses = 0.5 * jnp.square(errors) - gains - self.config.entropy_cost * policy.entropy()
        return mean_share(losses, valid), (experience, {})

    def num_updates_per_cycle(self, cycle):
        return 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReinforceConfig:
    """Settings of `Reinforce`."""

    corrects_for_policy_lag = False

    name: str = f"{_MODULE}:Reinforce"
    discount: float = 0.95


class Reinforce(ImportanceAgent):
    """REINFORCE with a baseline (Williams 1992): rewards to go, and no bootstrap."""

    Config = ReinforceConfig

    def act(self, networks, actor_state, env_step, *, greedy):
        action, _, state = super().act(networks, actor_state, env_step, greedy=greedy)
        return action, (), state

    def loss(self, networks, experience, key, clock):
        trajectory = experience.trajectory
        rows, valid = trajectory.env_steps, trajectory.valid
        policy, values = self.network.apply(networks, rows.observation)

        def add(later, row):
            reward, done = row
            total = reward + self.config.discount * jnp.where(done, 0.0, later)
            return total, total

        nothing = jnp.zeros_like(rows.reward[0])
        _, returns = jax.lax.scan(add, nothing, (rows.reward[1:], rows.done[1:]), reverse=True)
        errors = returns - values[:-1]
        log_probs = Categorical(logits=policy.logits[:-1]).log_prob(trajectory.action)
        losses = 0.5 * jnp.square(errors) - log_probs * jax.lax.stop_gradient(errors)
        return mean_share(losses, valid), (experience, {})


@pytree_dataclass
class VMPONetworks:
    """What learns, and the copy that acts."""

    online: Any
    target: Any


@pytree_dataclass
class Logits:
    """Extras of `VMPO`."""

    logits: jax.Array  # [B, actions]


@dataclasses.dataclass(frozen=True, kw_only=True)
class VMPOConfig:
    """Settings of `VMPO`."""

    corrects_for_policy_lag = False

    name: str = f"{_MODULE}:VMPO"
    discount: float = 0.95
    temperature_bound: float = 0.02
    kl_bound: float = 0.01
    target_period: int = 10


class VMPO(ImportanceAgent):
    """V-MPO (Song et al. 2019, arXiv 1909.12238), whose copy of the networks acts.

    Transitions count if their advantage is above the mean, in place of the median.
    """

    Config = VMPOConfig

    def init_networks(self, key):
        params = super().init_networks(key)
        online = {"net": params, "log_eta": jnp.float32(0.0), "log_alpha": jnp.float32(0.0)}
        return VMPONetworks(online=online, target=jax.tree.map(jnp.copy, params))

    def init_opt_state(self, networks):
        return self.optimizer.init(networks.online)

    def copy_to_targets(self, networks):
        target = jax.tree.map(jnp.copy, networks.online["net"])
        return VMPONetworks(online=networks.online, target=target)

    def act(self, networks, actor_state, env_step, *, greedy):
        policy, _ = self.network.apply(networks, env_step.observation)
        key, action_key = jax.random.split(actor_state.key)
        action = policy.mode() if greedy else policy.sample(action_key)
        return action, Logits(logits=policy.logits), KeyState(key=key)

    def loss(self, networks, experience, key, clock):
        trajectory, online = experience.trajectory, networks.online
        rows, valid = trajectory.env_steps, trajectory.valid
        policy, values = self.network.apply(online["net"], rows.observation)
        advantages = gae(
            rewards=rows.reward[1:],
            discounts=jnp.where(rows.terminated[1:], 0.0, self.config.discount),
            valid=valid,
            values=values,
            lambda_=0.9,
        )
        errors = jax.lax.stop_gradient(values[:-1]) + advantages - values[:-1]
        eta, alpha = jnp.exp(online["log_eta"]), jnp.exp(online["log_alpha"])
        is_top = valid & (advantages > masked_mean(advantages, valid))
        weights = jnp.exp(jnp.where(is_top, advantages / eta, 0.0))
        mean_weight = masked_mean(weights, is_top)
        policy = Categorical(logits=policy.logits[:-1])
        gains = jax.lax.stop_gradient(weights / mean_weight) * policy.log_prob(trajectory.action)
        old = jax.nn.log_softmax(trajectory.extras.logits)
        kl = jnp.sum(jnp.exp(old) * (old - jax.nn.log_softmax(policy.logits)), axis=-1)
        kl = masked_mean(kl, valid)
        fixed = jax.lax.stop_gradient
        multipliers = eta * (self.config.temperature_bound + jnp.log(mean_weight))
        multipliers += alpha * (self.config.kl_bound - fixed(kl)) + fixed(alpha) * kl
        loss = mean_share(0.5 * jnp.square(errors), valid) - mean_share(gains, is_top)
        # The same on all devices, which add up their losses.
        everywhere = jnp.ones_like(valid)
        loss += mean_share(jnp.broadcast_to(multipliers, valid.shape), everywhere)
        return loss, (experience, {})

    def optimize(self, networks, opt_state, grads, experience, clock):
        online, opt_state = descend(self.optimizer, networks.online, opt_state, grads.online)
        is_due = clock.step % self.config.target_period == 0
        target = jax.tree.map(
            lambda new, old: jnp.where(is_due, new, old), online["net"], networks.target
        )
        return VMPONetworks(online=online, target=target), opt_state

    def actor_networks(self, networks):
        return networks.target


@dataclasses.dataclass(frozen=True, kw_only=True)
class MPOConfig(DistributionConfig):
    """Settings of `MPO`."""

    name: str = f"{_MODULE}:MPO"
    temperature: float = 0.5
    kl_cost: float = 0.1


class MPO(C51):
    """MPO (Abdolmaleki et al. 2018, arXiv 1806.06920) of all actions, whose target policy acts.

    The temperature and the cost of the KL divergence are constant, as a bound on each would make
    them at one policy.
    """

    Config = MPOConfig

    def __init__(self, config, run_spec):
        super().__init__(config, run_spec)
        self.network = Head((self.num_actions,), config.num_units)

    def init_networks(self, key):
        observation = zeros(self.run_spec.environment.observation, 1)
        policy_key, critic_key = jax.random.split(key)
        online = {
            "policy": self.network.init(policy_key, observation),
            "critic": self.network.init(critic_key, observation),
        }
        return Networks(online=online, target=jax.tree.map(jnp.copy, online))

    def act(self, networks, actor_state, env_step, *, greedy):
        policy = Categorical(logits=self.network.apply(networks, env_step.observation))
        key, action_key = jax.random.split(actor_state.key)
        action = policy.mode() if greedy else policy.sample(action_key)
        return action, (), KeyState(key=key)

    def actor_networks(self, networks):
        return networks.target["policy"]

    def losses(self, networks, batch, key):
        target, online = jax.lax.stop_gradient(networks.target), networks.online
        next_policy = jax.nn.softmax(self.network.apply(target["policy"], batch.next_observation))
        next_q = self.network.apply(target["critic"], batch.next_observation)
        returns = batch.reward + batch.discount * jnp.sum(next_policy * next_q, axis=-1)
        each = jnp.arange(len(batch.reward))
        taken = self.network.apply(online["critic"], batch.observation)[each, batch.action]
        old = jax.nn.log_softmax(self.network.apply(target["policy"], batch.observation))
        q = self.network.apply(target["critic"], batch.observation)
        improved = jax.nn.softmax(old + q / self.config.temperature)
        new = jax.nn.log_softmax(self.network.apply(online["policy"], batch.observation))
        kl = jnp.sum(jnp.exp(old) * (old - new), axis=-1)
        policy_loss = self.config.kl_cost * kl - jnp.sum(improved * new, axis=-1)
        return optax.huber_loss(taken, returns) + policy_loss, returns - taken


@dataclasses.dataclass(frozen=True, kw_only=True)
class RNDConfig:
    """Settings of `RND`."""

    corrects_for_policy_lag = False

    name: str = f"{_MODULE}:RND"
    discount: float = 0.95
    bonus: float = 0.1
    """Factor of the prediction errors in the rewards."""


class RND(ImportanceAgent):
    """A2C with the bonus of RND (Burda et al. 2018, arXiv 1810.12894): one part never learns."""

    Config = RNDConfig
    learns_from_final_observations = True

    def __init__(self, config, run_spec):
        super().__init__(config, run_spec)
        self.features = Head((4,))

    def init_networks(self, key):
        observation = zeros(self.run_spec.environment.observation, 1)
        policy_key, *keys = jax.random.split(key, 3)
        predictor, random = (self.features.init(each, observation) for each in keys)
        policy = super().init_networks(policy_key)
        return {"policy": policy, "predictor": predictor, "random": random}

    def act(self, networks, actor_state, env_step, *, greedy):
        action, _, state = super().act(networks, actor_state, env_step, greedy=greedy)
        return action, (), state

    def loss(self, networks, experience, key, clock):
        trajectory = experience.trajectory
        rows, valid = trajectory.env_steps, trajectory.valid
        policy, values = self.network.apply(networks["policy"], rows.observation)
        following = rows.observation[1:].reshape(valid.size, -1)
        random = jax.lax.stop_gradient(self.features.apply(networks["random"], following))
        predicted = self.features.apply(networks["predictor"], following)
        errors = jnp.mean(jnp.square(predicted - random), axis=-1).reshape(valid.shape)
        advantages = gae(
            rewards=rows.reward[1:] + self.config.bonus * jax.lax.stop_gradient(errors),
            discounts=jnp.where(rows.terminated[1:], 0.0, self.config.discount),
            valid=valid,
            values=values,
            lambda_=1.0,
        )
        residuals = jax.lax.stop_gradient(values[:-1]) + advantages - values[:-1]
        log_probs = Categorical(logits=policy.logits[:-1]).log_prob(trajectory.action)
        losses = 0.5 * jnp.square(residuals) - log_probs * advantages + errors
        return mean_share(losses, valid), (experience, {})

    def optimize(self, networks, opt_state, grads, experience, clock):
        after, opt_state = super().optimize(networks, opt_state, grads, experience, clock)
        return {**after, "random": networks["random"]}, opt_state

    def actor_networks(self, networks):
        return networks["policy"]
