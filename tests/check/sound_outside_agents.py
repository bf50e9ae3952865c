"""Sound agents as people write them outside of Sebulba, with few parts of its toolkit."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from sebulba.pytree import pytree_dataclass
from sebulba.toolkit.reductions import masked_moments, mean_share
from sebulba.toolkit.replay import ReplayConfig, TransitionReplay
from sebulba.toolkit.sharding import shard_per_env_leaves
from sebulba.toolkit.spaces import zeros
from sebulba.toolkit.window import init_window, push
from tests.check.small_agents import KeyState
from tests.check.sound_agents import Head, Networks

_MODULE = "tests.check.sound_outside_agents"


def entry(rows, index):
    """Return an entry of each row, as a one-hot product."""
    return jnp.sum(rows * jax.nn.one_hot(index, rows.shape[-1]), axis=-1)


def rewards_to_go(rewards, ends, discount):
    """Return `[T, B]` sums of the rewards of each step and of those after it in its episode."""

    def add(later, row):
        reward, end = row
        total = reward + discount * jnp.where(end, 0.0, later)
        return total, total

    return jax.lax.scan(add, jnp.zeros_like(rewards[0]), (rewards, ends), reverse=True)[1]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShortReinforceConfig:
    """Settings of `ShortReinforce`."""

    corrects_for_policy_lag = False

    name: str = f"{_MODULE}:ShortReinforce"
    gamma: float = 0.97


class ShortReinforce:
    """Williams 1992: standardised rewards to go, a dictionary of weights, plain gradient ascent."""

    Config = ShortReinforceConfig

    def __init__(self, config, run_spec):
        self.gamma, self.run_spec = config.gamma, run_spec
        self.num_actions = int(run_spec.environment.action_space.n)

    def init_networks(self, key):
        (size,) = self.run_spec.environment.observation.shape
        keys = jax.random.split(key)
        return {
            "w1": 0.5 * jax.random.normal(keys[0], (size, 16)),
            "b1": jnp.zeros(16),
            "w2": 0.1 * jax.random.normal(keys[1], (16, self.num_actions)),
        }

    def logits(self, networks, observation):
        bias = networks["b1"].reshape(*(1,) * (observation.ndim - 1), -1)
        hidden = jnp.tanh(jnp.dot(observation, networks["w1"]) + bias)
        return jax.nn.log_softmax(jnp.dot(hidden, networks["w2"]))

    def init_opt_state(self, networks):
        return ()

    def init_actor_state(self, networks, num_envs, key, global_actor_id):
        return KeyState(key=key)

    def shard_actor_state(self, actor_state, sharding):
        return shard_per_env_leaves(actor_state, sharding, replicated=("key",))

    def act(self, networks, actor_state, env_step, *, greedy):
        logits = self.logits(networks, jnp.asarray(env_step.observation))
        key, action_key = jax.random.split(actor_state.key)
        drawn = jax.random.categorical(action_key, logits)
        action = jnp.argmax(logits, axis=-1) if greedy else drawn
        return action.astype(jnp.int32), (), KeyState(key=key)

    def init_experience(self, networks, num_envs):
        return init_window(self, networks, self.run_spec, num_envs, keep=lambda state: ())

    def update_experience(self, networks, experience, initial, final, trajectory, actor_id):
        return push(experience, (), trajectory)

    def loss(self, networks, experience, key, clock):
        rows, valid = experience.trajectory.env_steps, experience.trajectory.valid
        returns = rewards_to_go(rows.reward[1:], rows.done[1:], self.gamma)
        mean, std = masked_moments(returns, valid)
        logits = self.logits(networks, rows.observation[:-1])
        log_probs = entry(logits, experience.trajectory.action)
        return -mean_share(log_probs * (returns - mean) / (std + 1e-6), valid), (experience, {})

    def optimize(self, networks, opt_state, grads, experience, clock):
        return jax.tree.map(lambda leaf, grad: leaf - 0.05 * grad, networks, grads), opt_state

    def num_updates_per_cycle(self, cycle):
        return 1

    def actor_networks(self, networks):
        return networks


class _LSTMPolicy(nn.Module):
    num_actions: int
    size: int = 8

    @nn.compact
    def __call__(self, observation, is_first, carry):
        """Return logits `[T, B, A]`, values `[T, B]` and the state after the last row."""
        x = nn.LayerNorm()(nn.relu(nn.Dense(16)(observation)))

        def step(cell, carry, row):
            x, is_first = row
            carry = jax.tree.map(lambda leaf: jnp.where(is_first[:, None], 0.0, leaf), carry)
            return cell(carry, x)

        scan = nn.scan(step, variable_broadcast="params", split_rngs={"params": False})
        carry, x = scan(nn.OptimizedLSTMCell(self.size), carry, (x, is_first))
        return nn.Dense(self.num_actions)(x), nn.Dense(1)(x)[..., 0], carry


@pytree_dataclass
class LSTMState:
    carry: tuple  # of [B, size]
    key: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class LSTMPPOConfig:
    """Settings of `LSTMPPO`."""

    name: str = f"{_MODULE}:LSTMPPO"
    discount: float = 0.97
    gae_lambda: float = 0.9
    clip: float = 0.2
    entropy_cost: float = 0.01
    learning_rate: float = 1e-3


class LSTMPPO:
    """PPO with an LSTM (arXiv 1707.06347) whose extras are raw logits and values, in a dict."""

    Config = LSTMPPOConfig

    def __init__(self, config, run_spec):
        self.config, self.run_spec = config, run_spec
        self.network = _LSTMPolicy(int(run_spec.environment.action_space.n))
        self.optimizer = optax.chain(
            optax.clip_by_global_norm(0.5), optax.adam(config.learning_rate)
        )

    def carry(self, num_envs):
        return (jnp.zeros((num_envs, self.network.size)),) * 2

    def init_networks(self, key):
        shape = self.run_spec.environment.observation.shape
        rows = jnp.zeros((1, 1, *shape)), jnp.ones((1, 1), bool)
        return self.network.init(key, *rows, self.carry(1))

    def init_opt_state(self, networks):
        return self.optimizer.init(networks)

    def init_actor_state(self, networks, num_envs, key, global_actor_id):
        return LSTMState(carry=self.carry(num_envs), key=key)

    def shard_actor_state(self, actor_state, sharding):
        return shard_per_env_leaves(actor_state, sharding, replicated=("key",))

    def act(self, networks, actor_state, env_step, *, greedy):
        rows = (jnp.asarray(x)[None] for x in (env_step.observation, env_step.is_first))
        logits, values, carry = self.network.apply(networks, *rows, actor_state.carry)
        key, action_key = jax.random.split(actor_state.key)
        drawn = jax.random.categorical(action_key, logits[0])
        action = jnp.argmax(logits[0], axis=-1) if greedy else drawn
        extras = {"logits": logits[0], "value": values[0]}
        return action.astype(jnp.int32), extras, LSTMState(carry=carry, key=key)

    def init_experience(self, networks, num_envs):
        return init_window(self, networks, self.run_spec, num_envs, keep=lambda state: state.carry)

    def update_experience(self, networks, experience, initial, final, trajectory, actor_id):
        return push(experience, initial.carry, trajectory)

    def loss(self, networks, experience, key, clock):
        config, trajectory = self.config, experience.trajectory
        rows, valid, action = trajectory.env_steps, trajectory.valid, trajectory.action
        logits, values, _ = self.network.apply(
            networks, rows.observation, rows.is_first, experience.initial
        )
        old = jnp.concatenate([trajectory.extras["value"], jax.lax.stop_gradient(values[-1:])])
        returns = _lambda_returns(rows, old, config)
        advantages = returns - old[:-1]
        log_probs = jax.nn.log_softmax(logits[:-1])
        before = entry(jax.nn.log_softmax(trajectory.extras["logits"]), action)
        ratios = jnp.exp(jnp.where(valid, entry(log_probs, action) - before, 0.0))
        clipped = jnp.clip(ratios, 1.0 - config.clip, 1.0 + config.clip)
        gains = jnp.minimum(ratios * advantages, clipped * advantages)
        entropy = -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1)
        losses = 0.5 * jnp.square(returns - values[:-1]) - gains - config.entropy_cost * entropy
        return mean_share(losses, valid), (experience, {})

    def optimize(self, networks, opt_state, grads, experience, clock):
        updates, opt_state = self.optimizer.update(grads, opt_state, networks)
        return optax.apply_updates(networks, updates), opt_state

    def num_updates_per_cycle(self, cycle):
        return 3

    def actor_networks(self, networks):
        return networks


def _lambda_returns(rows, values, config):
    """Return λ-returns that stop at the end of an episode, and bootstrap at a truncation."""

    def add(later, row):
        reward, terminated, done, value = row
        blended = jnp.where(
            done, value, (1.0 - config.gae_lambda) * value + config.gae_lambda * later
        )
        total = reward + config.discount * jnp.where(terminated, 0.0, blended)
        return total, total

    xs = rows.reward[1:], rows.terminated[1:], rows.done[1:], values[1:]
    return jax.lax.scan(add, values[-1], xs, reverse=True)[1]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SoftConfig(ReplayConfig):
    """Settings of `DiscreteSAC`."""

    name: str = f"{_MODULE}:DiscreteSAC"
    alpha: float = 0.05
    """Weight of the entropy."""
    polyak: float = 0.01


class _SoftAgent:
    """What the variants of SAC share: a policy, critics, and targets that follow slowly."""

    Config = SoftConfig

    def __init__(self, config, run_spec):
        self.config, self.run_spec = config, run_spec
        self.replay = TransitionReplay(config, run_spec, priority_exponent=0.0, n_step=1)
        self.optimizer = optax.adam(config.learning_rate)

    def init_opt_state(self, networks):
        return self.optimizer.init(networks.online)

    def init_experience(self, networks, num_envs):
        return self.replay.init()

    def update_experience(self, networks, experience, initial, final, trajectory, actor_id):
        return self.replay.add(experience, trajectory, actor_id)

    def init_actor_state(self, networks, num_envs, key, global_actor_id):
        return KeyState(key=key)

    def shard_actor_state(self, actor_state, sharding):
        return shard_per_env_leaves(actor_state, sharding, replicated=("key",))

    def actor_networks(self, networks):
        return networks.online["policy"]

    def loss(self, networks, experience, key, clock):
        sample_key, key = jax.random.split(key)
        batch = self.replay.sample(experience, sample_key, clock)
        losses = self.losses(networks, batch, key)
        return mean_share(losses, jnp.ones_like(losses, bool)), (experience, {})

    def optimize(self, networks, opt_state, grads, experience, clock):
        updates, opt_state = self.optimizer.update(grads.online, opt_state, networks.online)
        online = optax.apply_updates(networks.online, updates)
        target = optax.incremental_update(online["critics"], networks.target, self.config.polyak)
        return Networks(online=online, target=target), opt_state

    def num_updates_per_cycle(self, cycle):
        return self.replay.ratio.num_updates_in(cycle)


class DiscreteSAC(_SoftAgent):
    """SAC for discrete actions, with exact expectations (Christodoulou 2019, arXiv 1910.07207)."""

    def __init__(self, config, run_spec):
        super().__init__(config, run_spec)
        num_actions = int(run_spec.environment.action_space.n)
        self.policy, self.critic = Head((num_actions,)), Head((2, num_actions))

    def init_networks(self, key):
        keys, observation = jax.random.split(key), zeros(self.run_spec.environment.observation, 1)
        critics = self.critic.init(keys[1], observation)
        online = {"policy": self.policy.init(keys[0], observation), "critics": critics}
        return Networks(online=online, target=jax.tree.map(jnp.copy, critics))

    def act(self, networks, actor_state, env_step, *, greedy):
        logits = self.policy.apply(networks, jnp.asarray(env_step.observation))
        key, action_key = jax.random.split(actor_state.key)
        drawn = jax.random.categorical(action_key, logits)
        action = jnp.argmax(logits, axis=-1) if greedy else drawn
        return action.astype(jnp.int32), (), KeyState(key=key)

    def losses(self, networks, batch, key):
        online, alpha = networks.online, self.config.alpha
        following = self.policy.apply(online["policy"], batch.next_observation)
        log_probs = jax.lax.stop_gradient(jax.nn.log_softmax(following))
        q = self.critic.apply(networks.target, batch.next_observation).min(axis=1)
        value = jnp.sum(jnp.exp(log_probs) * (q - alpha * log_probs), axis=-1)
        returns = jax.lax.stop_gradient(batch.reward + batch.discount * value)
        qs = self.critic.apply(online["critics"], batch.observation)
        taken = jnp.sum(qs * jax.nn.one_hot(batch.action, qs.shape[-1])[:, None], axis=-1)
        log_probs = jax.nn.log_softmax(self.policy.apply(online["policy"], batch.observation))
        gain = jax.lax.stop_gradient(qs.min(axis=1)) - alpha * log_probs
        critic_loss = jnp.square(taken - returns[:, None]).sum(axis=-1)
        return critic_loss - jnp.sum(jnp.exp(log_probs) * gain, axis=-1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EnsembleSACConfig(SoftConfig):
    """Settings of `EnsembleSAC`."""

    name: str = f"{_MODULE}:EnsembleSAC"
    num_critics: int = 4


class EnsembleSAC(_SoftAgent):
    """SAC with several critics, of which two random ones make the target (arXiv 2101.05982)."""

    Config = EnsembleSACConfig

    def __init__(self, config, run_spec):
        super().__init__(config, run_spec)
        (self.size,) = run_spec.environment.action_space.shape
        self.policy, self.critic = Head((2, self.size)), Head((config.num_critics,))

    def init_networks(self, key):
        keys, observation = jax.random.split(key), zeros(self.run_spec.environment.observation, 1)
        critics = self.critic.init(keys[1], observation, jnp.zeros((1, self.size)))
        online = {"policy": self.policy.init(keys[0], observation), "critics": critics}
        return Networks(online=online, target=jax.tree.map(jnp.copy, critics))

    def draw(self, params, observation, key):
        """Return squashed actions, and their log densities."""
        outputs = self.policy.apply(params, observation)
        mean, log_std = outputs[:, 0], jnp.clip(outputs[:, 1] - 0.5, -5.0, 1.0)
        noise = jax.random.normal(key, mean.shape)
        x = mean + jnp.exp(log_std) * noise
        log_density = -0.5 * jnp.square(noise) - log_std - 0.9189385
        squashing = 2.0 * (jnp.log(2.0) - x - jax.nn.softplus(-2.0 * x))
        return jnp.tanh(x), jnp.sum(log_density - squashing, axis=-1)

    def act(self, networks, actor_state, env_step, *, greedy):
        observation = jnp.asarray(env_step.observation)
        key, action_key = jax.random.split(actor_state.key)
        mode = jnp.tanh(self.policy.apply(networks, observation)[:, 0])
        action = mode if greedy else self.draw(networks, observation, action_key)[0]
        return action, (), KeyState(key=key)

    def losses(self, networks, batch, key):
        online, alpha = networks.online, self.config.alpha
        keys = jax.random.split(key, 3)
        following, log_prob = self.draw(online["policy"], batch.next_observation, keys[0])
        q = self.critic.apply(networks.target, batch.next_observation, following)
        chosen = jax.random.choice(keys[1], self.config.num_critics, (2,), replace=False)
        value = q[:, chosen].min(axis=-1) - alpha * log_prob
        returns = jax.lax.stop_gradient(batch.reward + batch.discount * value)
        taken = self.critic.apply(online["critics"], batch.observation, batch.action)
        action, log_prob = self.draw(online["policy"], batch.observation, keys[2])
        frozen = jax.lax.stop_gradient(online["critics"])
        gain = self.critic.apply(frozen, batch.observation, action).mean(axis=-1)
        critic_loss = jnp.square(taken - returns[:, None]).sum(axis=-1)
        return critic_loss + alpha * log_prob - gain
