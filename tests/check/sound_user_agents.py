"""Sound agents whose losses have parts that no setting names, such as users write them."""

import dataclasses
import types

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from sebulba.pytree import pytree_dataclass
from sebulba.toolkit.distributions import Categorical
from sebulba.toolkit.reductions import mean_share
from sebulba.toolkit.replay import ReplayConfig, TransitionReplay
from sebulba.toolkit.returns import gae
from tests.check.small_agents import ImportanceAgent, KeyState, LogProb
from tests.check.sound_agents import C51, Networks

_MODULE = "tests.check.sound_user_agents"
_RETURNS = np.linspace(-5.0, 5.0, 11, dtype=np.float32)


class _DropoutNetwork(nn.Module):
    """A policy's logits and a value."""

    num_actions: int

    @nn.compact
    def __call__(self, x, key=None):
        x = nn.gelu(nn.Dense(16)(x))
        if key is not None:
            x = nn.Dropout(0.1, deterministic=False)(x, rng=key)
        return nn.Dense(self.num_actions)(x), nn.Dense(1)(x)[..., 0]


@dataclasses.dataclass(frozen=True, kw_only=True)
class DropoutPPOConfig:
    """Settings of `DropoutPPO`."""

    name: str = f"{_MODULE}:DropoutPPO"
    discount: float = 0.95
    gae_lambda: float = 0.9
    temperature: float = 0.5


class DropoutPPO(ImportanceAgent):
    """PPO with a temperature of the policy, dropout in its loss alone, and no entropy bonus."""

    Config = DropoutPPOConfig

    def __init__(self, config, run_spec):
        super().__init__(config, run_spec)
        self.network = _DropoutNetwork(int(run_spec.environment.action_space.n))

    def act(self, networks, actor_state, env_step, *, greedy):
        logits, _ = self.network.apply(networks, env_step.observation)
        policy = Categorical(logits=logits / self.config.temperature)
        key, action_key = jax.random.split(actor_state.key)
        action = policy.mode() if greedy else policy.sample(action_key)
        return action, policy, KeyState(key=key)

    def loss(self, networks, experience, key, clock):
        trajectory = experience.trajectory
        rows, valid = trajectory.env_steps, trajectory.valid
        _, old = self.network.apply(networks, rows.observation)
        advantages = gae(
            rewards=rows.reward[1:],
            discounts=jnp.where(rows.terminated[1:], 0.0, self.config.discount),
            valid=valid,
            values=old,
            lambda_=self.config.gae_lambda,
        )
        logits, values = self.network.apply(networks, rows.observation, key)
        policy = Categorical(logits=logits[:-1] / self.config.temperature)
        log_probs = trajectory.extras.log_prob(trajectory.action)
        ratios = jnp.exp(policy.log_prob(trajectory.action) - log_probs)
        clipped = jnp.clip(ratios, 0.8, 1.2)
        gains = jnp.minimum(ratios * advantages, clipped * advantages)
        errors = jax.lax.stop_gradient(old[:-1]) + advantages - values[:-1]
        return mean_share(jnp.square(errors) - gains, valid), (experience, {})

    def num_updates_per_cycle(self, cycle):
        return 3


class _ReturnsNetwork(nn.Module):
    """A policy, and a distribution of returns."""

    num_actions: int

    @nn.compact
    def __call__(self, x):
        x = nn.tanh(nn.Dense(8)(x))
        policy, returns = (nn.Dense(size)(x) for size in (self.num_actions, len(_RETURNS)))
        return Categorical(logits=policy), Categorical(logits=returns)


@pytree_dataclass
class _ReturnsAndPolicy:
    returns: Categorical  # [B, len(_RETURNS)]
    policy: Categorical  # [B, A]


class StoresReturns(ImportanceAgent):
    """A policy gradient whose values are means of a distribution, which acting stores as well."""

    def __init__(self, config, run_spec):
        super().__init__(config, run_spec)
        self.both = _ReturnsNetwork(int(run_spec.environment.action_space.n))
        self.network = types.SimpleNamespace(init=self.both.init, apply=self._policy_and_values)

    def _policy_and_values(self, networks, observation):
        policy, returns = self.both.apply(networks, observation)
        return policy, jax.nn.softmax(returns.logits) @ _RETURNS

    def act(self, networks, actor_state, env_step, *, greedy):
        action, _, actor_state = super().act(networks, actor_state, env_step, greedy=greedy)
        policy, returns = self.both.apply(networks, env_step.observation)
        return action, _ReturnsAndPolicy(returns=returns, policy=policy), actor_state

    def loss(self, networks, experience, key, clock):
        trajectory = experience.trajectory
        log_prob = trajectory.extras.policy.log_prob(trajectory.action)
        stored = dataclasses.replace(trajectory, extras=LogProb(log_prob=log_prob))
        changed = dataclasses.replace(experience, trajectory=stored)
        loss, (_, metrics) = super().loss(networks, changed, key, clock)
        return loss, (experience, metrics)


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
        self.replay = TransitionReplay(config, run_spec, n_step=3)
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
