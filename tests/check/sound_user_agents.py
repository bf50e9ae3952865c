"""Sound agents whose losses have parts that no setting names, such as users write them."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from sebulba.toolkit.distributions import Categorical
from sebulba.toolkit.reductions import mean_share
from sebulba.toolkit.replay import ReplayConfig, transition_replay
from sebulba.toolkit.returns import gae
from tests.check.small_agents import ImportanceAgent, KeyState
from tests.check.sound_agents import C51, Networks

_MODULE = "tests.check.sound_user_agents"


def _discounts(rows, discount):
    return jnp.where(rows.terminated[1:], 0.0, discount)


class _Heads(nn.Module):
    """A policy's logits and several values."""

    num_actions: int
    num_values: int = 1
    dropout: float = 0.0

    @nn.compact
    def __call__(self, x, key=None):
        x = nn.gelu(nn.Dense(16)(x))
        if key is not None:
            x = nn.Dropout(self.dropout, deterministic=False)(x, rng=key)
        return nn.Dense(self.num_actions)(x), nn.Dense(self.num_values)(x)


class _ActorCritic(ImportanceAgent):
    """Without a correction: `ImportanceAgent` with `_Heads`, and nothing in the extras."""

    num_values = 1
    temperature = 1.0

    def __init__(self, config, run_spec):
        super().__init__(config, run_spec)
        num_actions = int(run_spec.environment.action_space.n)
        self.network = _Heads(num_actions, self.num_values, 0.1)

    def policy(self, logits):
        return Categorical(logits=logits / self.temperature)

    def act(self, networks, actor_state, env_step, *, greedy):
        policy = self.policy(self.network.apply(networks, env_step.observation)[0])
        key, action_key = jax.random.split(actor_state.key)
        action = policy.mode() if greedy else policy.sample(action_key)
        return action, self.extras(policy), KeyState(key=key)

    def extras(self, policy):
        return ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class HorizonsConfig:
    """Settings of `Horizons`."""

    corrects_for_policy_lag = False

    name: str = f"{_MODULE}:Horizons"
    discounts: tuple[float, ...] = (0.5, 0.9, 0.97)


class Horizons(_ActorCritic):
    """A value for each of several discounts, whose mean advantage the policy learns from."""

    Config = HorizonsConfig
    num_values = 3

    def loss(self, networks, experience, key, clock):
        trajectory = experience.trajectory
        rows, valid = trajectory.env_steps, trajectory.valid
        logits, values = self.network.apply(networks, rows.observation)
        each = [
            gae(
                rewards=rows.reward[1:],
                discounts=_discounts(rows, discount),
                valid=valid,
                values=values[..., head],
                lambda_=0.8,
            )
            for head, discount in enumerate(self.config.discounts)
        ]
        advantages = jnp.stack(each, axis=-1)
        log_probs = self.policy(logits[:-1]).log_prob(trajectory.action)
        losses = jnp.square(jax.lax.stop_gradient(values[:-1]) + advantages - values[:-1])
        losses = losses.sum(axis=-1) - log_probs * advantages.mean(axis=-1)
        return mean_share(losses, valid), (experience, {})


@dataclasses.dataclass(frozen=True, kw_only=True)
class DropoutPPOConfig:
    """Settings of `DropoutPPO`."""

    name: str = f"{_MODULE}:DropoutPPO"
    discount: float = 0.95
    gae_lambda: float = 0.9


class DropoutPPO(_ActorCritic):
    """PPO with a temperature of the policy, and dropout in its loss only."""

    Config = DropoutPPOConfig
    temperature = 0.5

    def extras(self, policy):
        return policy

    def loss(self, networks, experience, key, clock):
        trajectory = experience.trajectory
        rows, valid = trajectory.env_steps, trajectory.valid
        logits, values = self.network.apply(networks, rows.observation, key)
        advantages = gae(
            rewards=rows.reward[1:],
            discounts=_discounts(rows, self.config.discount),
            valid=valid,
            values=self.network.apply(networks, rows.observation)[1][..., 0],
            lambda_=self.config.gae_lambda,
        )
        log_probs = self.policy(logits[:-1]).log_prob(trajectory.action)
        ratios = jnp.exp(log_probs - trajectory.extras.log_prob(trajectory.action))
        clipped = jnp.clip(ratios, 0.8, 1.2)
        gains = jnp.minimum(ratios * advantages, clipped * advantages)
        old = self.network.apply(networks, rows.observation)[1][:-1, :, 0]
        errors = jax.lax.stop_gradient(old) + advantages - values[:-1, :, 0]
        return mean_share(jnp.square(errors) - gains, valid), (experience, {})

    def num_updates_per_cycle(self, cycle):
        return 3


class _Noisy(nn.Module):
    """A layer whose weights have noise of a learned size (factorised)."""

    num_units: int

    @nn.compact
    def __call__(self, x, key):
        shape = (x.shape[-1], self.num_units)
        kernel = self.param("kernel", nn.initializers.lecun_normal(), shape)
        bias = self.param("bias", nn.initializers.zeros, shape[1:])
        if key is None:
            return x @ kernel + bias[None]
        size = self.param("size", nn.initializers.constant(0.2), shape)
        keys = jax.random.split(key)
        left, right = (jax.random.normal(k, (n,)) for k, n in zip(keys, shape, strict=True))
        return x @ (kernel + size * jnp.outer(left, right)) + bias[None]


class _NoisyNetwork(nn.Module):
    num_actions: int

    @nn.compact
    def __call__(self, x, key=None):
        keys = (None, None) if key is None else jax.random.split(key)
        x = nn.relu(_Noisy(16)(x.reshape(len(x), -1), keys[0]))
        return _Noisy(self.num_actions)(x, keys[1])


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoisyConfig(ReplayConfig):
    """Settings of `NoisyDQN`."""

    name: str = f"{_MODULE}:NoisyDQN"
    target_period: int = 20


class NoisyDQN(C51):
    """DQN of three steps with noise in its weights (arXiv 1706.10295) and smaller rewards."""

    Config = NoisyConfig

    def __init__(self, config, run_spec):
        self.config, self.run_spec = config, run_spec
        self.optimizer = optax.adam(config.learning_rate)
        self.replay = transition_replay(config, run_spec, n_step=3)
        self.network = _NoisyNetwork(int(run_spec.environment.action_space.n))

    def init_networks(self, key):
        shape = self.run_spec.environment.observation.shape
        online = self.network.init(key, jnp.zeros((1, *shape)), key)
        return Networks(online=online, target=jax.tree.map(jnp.copy, online))

    def act(self, networks, actor_state, env_step, *, greedy):
        key, noise_key = jax.random.split(actor_state.key)
        q = self.network.apply(networks, env_step.observation, None if greedy else noise_key)
        return q.argmax(axis=-1).astype(jnp.int32), (), KeyState(key=key)

    def loss(self, networks, experience, key, clock):
        key, *keys = jax.random.split(key, 4)
        batch = self.replay.sample(experience, key, clock)
        target = jax.lax.stop_gradient(networks.target)
        each = jnp.arange(len(batch.reward))
        best = self.network.apply(networks.online, batch.next_observation, keys[0]).argmax(axis=-1)
        following = self.network.apply(target, batch.next_observation, keys[1])[each, best]
        returns = 0.1 * batch.reward + batch.discount * following
        taken = self.network.apply(networks.online, batch.observation, keys[2])
        losses = jnp.square(jax.lax.stop_gradient(returns) - taken[each, batch.action])
        return mean_share(losses, jnp.ones_like(losses, bool)), (experience, {})
