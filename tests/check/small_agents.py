"""Small sound agents: feed-forward, with log-probabilities in their extras."""

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import gymnasium
import jax
import jax.numpy as jnp
import optax

from sebulba.pytree import pytree_dataclass
from sebulba.toolkit.distributions import Categorical, DiagonalGaussian
from sebulba.toolkit.optimizers import descend
from sebulba.toolkit.reductions import masked_mean
from sebulba.toolkit.returns import gae
from sebulba.toolkit.sharding import shard_per_env_leaves
from sebulba.toolkit.window import init_window, push


@pytree_dataclass
class KeyState:
    key: jax.Array


@pytree_dataclass
class LogProb:
    log_prob: jax.Array  # [B]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SmallConfig:
    """Settings of an `ImportanceAgent`."""

    name: str = "tests.check.small_agents:ImportanceAgent"
    """Name of the agent."""
    discount: float = 0.9
    """Discount factor γ."""


class PolicyValueNetwork(nn.Module):
    size: int
    is_continuous: bool
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x):
        dense = functools.partial(nn.Dense, dtype=jnp.float32, param_dtype=self.param_dtype)
        x = nn.tanh(dense(8)(x))
        out = dense(self.size)(x)
        value = dense(1)(x)[..., 0]
        if self.is_continuous:
            return DiagonalGaussian(mean=out, log_std=jnp.zeros_like(out)), value
        return Categorical(logits=out), value


class ImportanceAgent:
    """A policy gradient with a baseline and importance weights, discrete or continuous."""

    Config = SmallConfig

    def __init__(self, config, run_spec):
        self.config, self.run_spec = config, run_spec
        space = run_spec.environment.action_space
        is_continuous = isinstance(space, gymnasium.spaces.Box)
        size = space.shape[0] if is_continuous else int(space.n)
        self.network = PolicyValueNetwork(size=size, is_continuous=is_continuous)
        self.optimizer = optax.adam(1e-3)

    def init_networks(self, key):
        shape = self.run_spec.environment.observation.shape
        return self.network.init(key, jnp.zeros((1, *shape)))

    def init_opt_state(self, networks):
        return self.optimizer.init(networks)

    def init_experience(self, networks, num_envs):
        return init_window(self, networks, self.run_spec, num_envs, keep=lambda state: ())

    def init_actor_state(self, networks, num_envs, key, global_actor_id):
        return KeyState(key=key)

    def act(self, networks, actor_state, env_step, *, greedy):
        policy, _ = self.network.apply(networks, env_step.observation)
        key, action_key = jax.random.split(actor_state.key)
        action = policy.mode() if greedy else policy.sample(action_key)
        return action, LogProb(log_prob=self.stored(policy, action)), KeyState(key=key)

    def stored(self, policy, action):
        return policy.log_prob(action)

    def shard_actor_state(self, actor_state, sharding):
        return shard_per_env_leaves(actor_state, sharding, replicated=("key",))

    def update_experience(
        self, networks, experience, initial_state, final_state, trajectory, actor_id
    ):
        return push(experience, (), trajectory)

    def loss(self, networks, experience, key, clock):
        trajectory = experience.trajectory
        rows, valid = trajectory.env_steps, trajectory.valid
        policy, values = self.network.apply(networks, rows.observation)
        advantages = gae(
            rewards=rows.reward[1:],
            discounts=jnp.where(rows.terminated[1:], 0.0, self.config.discount),
            valid=valid,
            values=values,
            lambda_=1.0,
        )
        policy = jax.tree.map(lambda leaf: leaf[:-1], policy)
        log_ratios = policy.log_prob(trajectory.action) - trajectory.extras.log_prob
        ratios = jnp.exp(jnp.where(valid, log_ratios, 0.0))
        errors = jax.lax.stop_gradient(values[:-1]) + advantages - values[:-1]
        loss = -masked_mean(self.gains(ratios, advantages, valid), valid)
        return loss + masked_mean(jnp.square(errors), valid), (experience, {"loss": loss})

    def gains(self, ratios, advantages, valid):
        return ratios * advantages

    def optimize(self, networks, opt_state, grads, experience, clock):
        return descend(self.optimizer, networks, opt_state, grads)

    def num_updates_per_cycle(self, cycle):
        return 1

    def actor_networks(self, networks):
        return networks


class InBfloat16(ImportanceAgent):
    """Keeps its parameters in bfloat16, and takes four updates in a cycle."""

    def __init__(self, config, run_spec):
        super().__init__(config, run_spec)
        self.network = self.network.clone(param_dtype=jnp.bfloat16)
        self.optimizer = optax.sgd(0.05)

    def num_updates_per_cycle(self, cycle):
        return 4


class SimplePolicyOptimization(ImportanceAgent):
    """Keeps ratios near 1 by a penalty, not by a clip (Xie et al. 2024, arXiv 2401.16025)."""

    def gains(self, ratios, advantages, valid):
        return ratios * advantages - jnp.abs(advantages) / 0.4 * jnp.square(ratios - 1.0)


class WeightedImportance(ImportanceAgent):
    """Divides importance weights by their mean."""

    def gains(self, ratios, advantages, valid):
        mean = masked_mean(jax.lax.stop_gradient(ratios), valid)
        return ratios * advantages / mean[None, None]


class ModeLogProb(ImportanceAgent):
    """Stores the log-probability of the mode, not of the action taken."""

    def stored(self, policy, action):
        del action
        return policy.log_prob(policy.mode())


class WithoutClock(ImportanceAgent):
    """Has a loss without the argument `clock`."""

    def loss(self, networks, experience, key):
        return super().loss(networks, experience, key, None)
