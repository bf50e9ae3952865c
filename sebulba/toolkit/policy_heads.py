"""Heads of policies, one for each kind of action space: features in, a distribution out.

A head also says how an action is fed to a network that has to know the last one. Everything else of
an agent is the same for all kinds of actions.
"""

from typing import Protocol

import flax.linen as nn
import gymnasium
import jax
import jax.numpy as jnp
from flax.linen.initializers import constant, orthogonal

from sebulba.errors import ConfigError
from sebulba.toolkit.distributions import (
    Categorical,
    DiagonalGaussian,
    Distribution,
    MultiCategorical,
)

_POLICY_GAIN = 0.01


class PolicyHead(Protocol):
    """The last layer of a policy, as a flax module."""

    def __call__(self, features: jax.Array) -> Distribution:
        """Return the policy of each of `[T, B, F]`."""
        ...

    def encode(self, action: jax.Array) -> jax.Array:
        """Return actions `[T, B, ...]` as numbers for a network, `[T, B, E]`."""
        ...


class CategoricalHead(nn.Module):
    """One of `num_actions`."""

    num_actions: int

    @nn.compact
    def __call__(self, features: jax.Array) -> Categorical:
        """Return the policy of each of `[T, B, F]`."""
        logits = nn.Dense(self.num_actions, kernel_init=orthogonal(_POLICY_GAIN), name="logits")
        return Categorical(logits=logits(features))

    def encode(self, action: jax.Array) -> jax.Array:
        """Return `[T, B, A]`, one-hot."""
        return jax.nn.one_hot(action, self.num_actions, dtype=jnp.float32)


class MultiCategoricalHead(nn.Module):
    """Several choices at once, the `i`-th among `num_actions[i]`."""

    num_actions: tuple[int, ...]

    @nn.compact
    def __call__(self, features: jax.Array) -> MultiCategorical:
        """Return the policy of each of `[T, B, F]`."""
        total = sum(self.num_actions)
        logits = nn.Dense(total, kernel_init=orthogonal(_POLICY_GAIN), name="logits")(features)
        ends = [sum(self.num_actions[: i + 1]) for i in range(len(self.num_actions) - 1)]
        choices = jnp.split(logits, ends, axis=-1)
        return MultiCategorical(choices=tuple(Categorical(logits=part) for part in choices))

    def encode(self, action: jax.Array) -> jax.Array:
        """Return `[T, B, ΣA]`, a one-hot for each choice."""
        parts = [
            jax.nn.one_hot(action[..., i], size, dtype=jnp.float32)
            for i, size in enumerate(self.num_actions)
        ]
        return jnp.concatenate(parts, axis=-1)


class GaussianHead(nn.Module):
    """Means from the features; standard deviations that are the same everywhere."""

    action_size: int
    initial_log_std: float

    @nn.compact
    def __call__(self, features: jax.Array) -> DiagonalGaussian:
        """Return the policy of each of `[T, B, F]`."""
        mean = nn.Dense(self.action_size, kernel_init=orthogonal(_POLICY_GAIN), name="mean")
        log_std = self.param("log_std", constant(self.initial_log_std), (self.action_size,))
        mean = mean(features)
        return DiagonalGaussian(mean=mean, log_std=jnp.broadcast_to(log_std, mean.shape))

    def encode(self, action: jax.Array) -> jax.Array:
        """Return `[T, B, A]`, the action as it is."""
        return action


def make_policy_head(
    action_space: gymnasium.Space, *, agent: str, initial_log_std: float
) -> PolicyHead:
    """Return the head that suits the action space.

    Args:
        action_space: `EnvironmentSpec.action_space`.
        agent: its name, for the message.
        initial_log_std: of continuous actions, in the agent's own units.

    Raises:
        ConfigError: there is none.
    """
    match action_space:
        case gymnasium.spaces.Discrete(start=0):
            return CategoricalHead(int(action_space.n))
        case gymnasium.spaces.MultiDiscrete(shape=(_,)) if not action_space.start.any():
            return MultiCategoricalHead(tuple(int(size) for size in action_space.nvec))
        case gymnasium.spaces.Box(shape=(size,)):
            return GaussianHead(size, initial_log_std)
    raise ConfigError(
        f"env.id: {agent} expects an environment with Discrete actions from 0 on, a vector of"
        f" MultiDiscrete ones from 0 on, or a vector of continuous ones (Box), got {action_space}"
    )
