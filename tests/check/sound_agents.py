"""Small sound agents, written from the pages of the documentation about agents and replays."""

import dataclasses
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from sebulba.pytree import pytree_dataclass
from sebulba.toolkit.distributions import Categorical
from sebulba.toolkit.optimizers import descend
from sebulba.toolkit.reductions import masked_mean, mean_share
from sebulba.toolkit.replay import ReplayConfig, TransitionReplay
from sebulba.toolkit.returns import gae
from sebulba.toolkit.sharding import shard_per_env_leaves
from sebulba.toolkit.spaces import zeros
from sebulba.toolkit.window import init_window, push
from tests.check.small_agents import KeyState

_MODULE = "tests.check.sound_agents"


@pytree_dataclass
class Networks:
    online: dict
    target: dict


class Head(nn.Module):
    """One hidden layer, and outputs `[n, *shape]`."""

    shape: tuple[int, ...]
    num_units: int = 8

    @nn.compact
    def __call__(self, *inputs):
        x = jnp.concatenate([each.reshape(len(each), -1) for each in inputs], axis=-1)
        x = nn.relu(nn.Dense(self.num_units)(x))
        return nn.Dense(math.prod(self.shape))(x).reshape(-1, *self.shape)


class _Agent:
    """What the agents of this module share."""

    def __init__(self, config, run_spec):
        self.config, self.run_spec = config, run_spec
        self.optimizer = optax.adam(config.learning_rate)

    def init_opt_state(self, networks):
        return self.optimizer.init(networks.online)

    def init_actor_state(self, networks, num_envs, key, global_actor_id):
        return KeyState(key=key)

    def shard_actor_state(self, actor_state, sharding):
        return shard_per_env_leaves(actor_state, sharding, replicated=("key",))

    def actor_networks(self, networks):
        return networks.online


class _ReplayAgent(_Agent):
    """An agent with a replay of transitions, and a target network that is copied or averaged."""

    def __init__(self, config, run_spec):
        super().__init__(config, run_spec)
        options = {"priority_exponent": config.priority_exponent, "n_step": config.n_step}
        self.replay = TransitionReplay(config, run_spec, **options)

    def init_experience(self, networks, num_envs):
        return self.replay.init()

    def update_experience(
        self, networks, experience, initial_state, final_state, trajectory, actor_id
    ):
        return self.replay.add(experience, trajectory, actor_id)

    def loss(self, networks, experience, key, clock):
        sample_key, key = jax.random.split(key)
        batch = self.replay.sample(experience, sample_key, clock)
        losses, errors = self.losses(networks, batch, key)
        if self.config.priority_exponent:
            experience = self.replay.update_priorities(experience, batch.ids, errors)
        loss = mean_share(batch.weight * losses, jnp.ones_like(losses, bool))
        metrics = self.replay.ratio.metrics(experience, clock.step, batch.num_transitions)
        return loss, (experience, metrics)

    def optimize(self, networks, opt_state, grads, experience, clock):
        online, opt_state = descend(self.optimizer, networks.online, opt_state, grads.online)
        is_due = (clock.step + 1) % self.config.target_period == 0
        target = jax.tree.map(lambda a, b: jnp.where(is_due, a, b), online, networks.target)
        return Networks(online=online, target=target), opt_state

    def num_updates_per_cycle(self, cycle):
        return self.replay.ratio.num_updates_in(cycle)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _ReplayConfig(ReplayConfig):
    """Settings that the agents with a replay share."""

    num_units: int = 8
    n_step: int = 1
    priority_exponent: float = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class DistributionConfig(_ReplayConfig):
    """Settings of `C51` and `QRDQN`."""

    name: str = f"{_MODULE}:C51"
    num_outputs: int = 21
    """Atoms or quantiles."""
    limit: float = 10.0
    """Magnitude of the greatest atom."""
    target_period: int = 50
    epsilon: float = 0.3


class _DistributionalAgent(_ReplayAgent):
    """ε-greedy actions by the mean of a distribution of returns."""

    Config = DistributionConfig

    def __init__(self, config, run_spec):
        super().__init__(config, run_spec)
        self.num_actions = int(run_spec.environment.action_space.n)
        shape = (self.num_actions, config.num_outputs)
        self.network = Head(shape, config.num_units)

    def init_networks(self, key):
        online = self.network.init(key, zeros(self.run_spec.environment.observation, 1))
        return Networks(online=online, target=jax.tree.map(jnp.copy, online))

    def act(self, networks, actor_state, env_step, *, greedy):
        action = self.values(self.network.apply(networks, env_step.observation)).argmax(axis=-1)
        key, coin_key, action_key = jax.random.split(actor_state.key, 3)
        if not greedy:
            other = jax.random.randint(action_key, action.shape, 0, self.num_actions)
            coin = jax.random.uniform(coin_key, action.shape) < self.config.epsilon
            action = jnp.where(coin, other, action)
        return action.astype(jnp.int32), (), KeyState(key=key)

    def losses(self, networks, batch, key):
        each = jnp.arange(len(batch.reward))
        taken = self.network.apply(networks.online, batch.observation)[each, batch.action]
        following = self.network.apply(
            jax.lax.stop_gradient(networks.target), batch.next_observation
        )
        greedy = self.values(following).argmax(axis=-1)
        return self.losses_of(taken, following[each, greedy], batch)


class C51(_DistributionalAgent):
    """Categorical distributions of returns (Bellemare et al. 2017, arXiv 1707.06887)."""

    @property
    def atoms(self):
        return jnp.linspace(-self.config.limit, self.config.limit, self.config.num_outputs)

    def values(self, outputs):
        return jax.nn.softmax(outputs) @ self.atoms

    def losses_of(self, taken, following, batch):
        probabilities = jax.nn.softmax(following)
        returns = batch.reward[:, None] + batch.discount[:, None] * self.atoms[None]
        returns = jnp.clip(returns, -self.config.limit, self.config.limit)
        gaps = jnp.abs(returns[:, None, :] - self.atoms[None, :, None])
        width = self.atoms[1] - self.atoms[0]
        weights = jnp.clip(1.0 - gaps / width, 0.0, 1.0)  # [n, atom, atom of the target]
        projected = jnp.sum(weights * probabilities[:, None, :], axis=-1)
        losses = -jnp.sum(projected * jax.nn.log_softmax(taken), axis=-1)
        return losses, losses


class QRDQN(_DistributionalAgent):
    """Quantiles of returns (Dabney et al. 2018, arXiv 1710.10044)."""

    def values(self, outputs):
        return outputs.mean(axis=-1)

    def losses_of(self, taken, following, batch):
        targets = batch.reward[:, None] + batch.discount[:, None] * following
        errors = targets[:, None, :] - taken[:, :, None]
        middles = (jnp.arange(taken.shape[1], dtype=jnp.float32) + 0.5) / taken.shape[1]
        weights = jnp.abs(middles[None, :, None] - (errors < 0.0).astype(jnp.float32))
        losses = (weights * optax.huber_loss(errors)).mean(axis=-1).sum(axis=-1)
        return losses, (targets - taken).mean(axis=-1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TD3Config(_ReplayConfig):
    """Settings of `TD3`."""

    name: str = f"{_MODULE}:TD3"
    polyak: float = 0.005
    noise: float = 0.2
    """Standard deviation of exploration and of the smoothing of targets."""


class TD3(_ReplayAgent):
    """Deterministic policies and twin critics (Fujimoto et al. 2018, arXiv 1802.09477).

    The policy learns in every update, not in every second one.
    """

    Config = TD3Config

    def __init__(self, config, run_spec):
        super().__init__(config, run_spec)
        self.policy = Head(run_spec.environment.action_space.shape, config.num_units)
        self.critic = Head((), config.num_units)

    def init_networks(self, key):
        observation = zeros(self.run_spec.environment.observation, 1)
        action = jnp.zeros((1, *self.run_spec.environment.action_space.shape))
        keys = jax.random.split(key, 3)
        online = {
            "policy": self.policy.init(keys[0], observation),
            "critic_1": self.critic.init(keys[1], observation, action),
            "critic_2": self.critic.init(keys[2], observation, action),
        }
        return Networks(online=online, target=jax.tree.map(jnp.copy, online))

    def actor_networks(self, networks):
        return networks.online["policy"]

    def greedy_action(self, networks, observation):
        return jnp.tanh(self.policy.apply(networks, observation))

    def act(self, networks, actor_state, env_step, *, greedy):
        action = self.greedy_action(networks, env_step.observation)
        key, action_key = jax.random.split(actor_state.key)
        if not greedy:
            noise = self.config.noise * jax.random.normal(action_key, action.shape)
            action = jnp.clip(action + noise, -1.0, 1.0)
        return action, (), KeyState(key=key)

    def losses(self, networks, batch, key):
        online, target = networks.online, jax.lax.stop_gradient(networks.target)
        action = jnp.tanh(self.policy.apply(target["policy"], batch.next_observation))
        noise = self.config.noise * jax.random.normal(key, action.shape)
        action = jnp.clip(action + jnp.clip(noise, -0.5, 0.5), -1.0, 1.0)
        following = jnp.minimum(
            self.critic.apply(target["critic_1"], batch.next_observation, action),
            self.critic.apply(target["critic_2"], batch.next_observation, action),
        )
        returns = batch.reward + batch.discount * following
        errors = [
            returns - self.critic.apply(online[name], batch.observation, batch.action)
            for name in ("critic_1", "critic_2")
        ]
        greedy = jnp.tanh(self.policy.apply(online["policy"], batch.observation))
        frozen = jax.lax.stop_gradient(online["critic_1"])
        gain = self.critic.apply(frozen, batch.observation, greedy)
        return jnp.square(errors[0]) + jnp.square(errors[1]) - gain, errors[0]

    def optimize(self, networks, opt_state, grads, experience, clock):
        online, opt_state = descend(self.optimizer, networks.online, opt_state, grads.online)
        target = optax.incremental_update(online, networks.target, self.config.polyak)
        return Networks(online=online, target=target), opt_state


@dataclasses.dataclass(frozen=True, kw_only=True)
class AWRConfig:
    """Settings of `AWR`."""

    corrects_for_policy_lag = False

    name: str = f"{_MODULE}:AWR"
    num_units: int = 8
    discount: float = 0.9
    lambda_: float = 0.95
    temperature: float = 0.5
    learning_rate: float = 1e-3


class AWR(_Agent):
    """Regression on actions, weighted by exp(advantage) (Peng et al. 2019, arXiv 1910.00177).

    It learns from the newest trajectories, not from a replay.
    """

    Config = AWRConfig

    def __init__(self, config, run_spec):
        super().__init__(config, run_spec)
        self.policy = Head((int(run_spec.environment.action_space.n),), config.num_units)
        self.value = Head((), config.num_units)

    def init_networks(self, key):
        keys = jax.random.split(key)
        observation = zeros(self.run_spec.environment.observation, 1)
        return {
            "policy": self.policy.init(keys[0], observation),
            "value": self.value.init(keys[1], observation),
        }

    def init_opt_state(self, networks):
        return self.optimizer.init(networks)

    def init_experience(self, networks, num_envs):
        return init_window(self, networks, self.run_spec, num_envs, keep=lambda state: ())

    def actor_networks(self, networks):
        return networks["policy"]

    def act(self, networks, actor_state, env_step, *, greedy):
        policy = Categorical(logits=self.policy.apply(networks, env_step.observation))
        key, action_key = jax.random.split(actor_state.key)
        action = policy.mode() if greedy else policy.sample(action_key)
        return action, (), KeyState(key=key)

    def update_experience(
        self, networks, experience, initial_state, final_state, trajectory, actor_id
    ):
        return push(experience, (), trajectory)

    def loss(self, networks, experience, key, clock):
        trajectory = experience.trajectory
        rows, valid = trajectory.env_steps, trajectory.valid
        observation = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), rows.observation)
        values = self.value.apply(networks["value"], observation).reshape(rows.reward.shape)
        logits = self.policy.apply(networks["policy"], observation)
        logits = logits.reshape(*rows.reward.shape, -1)
        advantages = gae(
            rewards=rows.reward[1:],
            discounts=jnp.where(rows.terminated[1:], 0.0, self.config.discount),
            valid=valid,
            values=values,
            lambda_=self.config.lambda_,
        )
        returns = jax.lax.stop_gradient(values[:-1]) + advantages
        weights = jnp.minimum(jnp.exp(advantages / self.config.temperature), 20.0)
        log_probs = Categorical(logits=logits[:-1]).log_prob(trajectory.action)
        losses = jnp.square(returns - values[:-1]) - weights * log_probs
        return masked_mean(losses, valid), (experience, {})

    def optimize(self, networks, opt_state, grads, experience, clock):
        return descend(self.optimizer, networks, opt_state, grads)

    def num_updates_per_cycle(self, cycle):
        return 1
