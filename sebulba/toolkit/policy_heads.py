"""Policy heads, one per kind of action space: features in, a distribution out.

A head also encodes the last action as an input of recurrent networks. Everything else in an agent
is the same for all kinds of actions.
"""

from typing import Protocol

import flax.linen as nn
import gymnasium
import jax
import jax.numpy as jnp
from flax.linen.initializers import constant, orthogonal

from sebulba.errors import ConfigError
from sebulba.toolkit.dense import Dense
from sebulba.toolkit.distributions import (
    Categorical,
    DiagonalGaussian,
    Distribution,
    MultiCategorical,
    one_hot,
)

# A small gain makes the initial policy nearly uniform (Andrychowicz et al. 2020, arXiv 2006.05990).
_POLICY_GAIN = 0.01


class PolicyHead(Protocol):
    """The last layer of a policy, as a flax module."""

    def __call__(self, features: jax.Array) -> Distribution:
        """Return policies `[T, B]` of features `[T, B, F]`."""
        ...

    def encode(self, action: jax.Array) -> jax.Array:
        """Return actions `[T, B, ...]` as network inputs `[T, B, E]`."""
        ...


class CategoricalHead(nn.Module):
    """One of `num_actions`."""

    num_actions: int

    @nn.compact
    def __call__(self, features: jax.Array) -> Categorical:
        """Return policies `[T, B]` of features `[T, B, F]`."""
        logits = Dense(self.num_actions, kernel_init=orthogonal(_POLICY_GAIN), name="logits")
        return Categorical(logits=logits(features))

    def encode(self, action: jax.Array) -> jax.Array:
        """Return `[T, B, A]`, one-hot."""
        return one_hot(action, self.num_actions)


class MultiCategoricalHead(nn.Module):
    """Several independent choices, the `i`-th among `num_actions[i]`."""

    num_actions: tuple[int, ...]

    @nn.compact
    def __call__(self, features: jax.Array) -> MultiCategorical:
        """Return policies `[T, B]` of features `[T, B, F]`."""
        total = sum(self.num_actions)
        logits = Dense(total, kernel_init=orthogonal(_POLICY_GAIN), name="logits")(features)
        ends = [sum(self.num_actions[: i + 1]) for i in range(len(self.num_actions) - 1)]
        choices = jnp.split(logits, ends, axis=-1)
        return MultiCategorical(choices=tuple(Categorical(logits=part) for part in choices))

    def encode(self, action: jax.Array) -> jax.Array:
        """Return `[T, B, ΣA]`, one one-hot vector per choice."""
        parts = [one_hot(action[..., i], size) for i, size in enumerate(self.num_actions)]
        return jnp.concatenate(parts, axis=-1)


class GaussianHead(nn.Module):
    """Means from the features; standard deviations are parameters, independent of the features."""

    action_size: int
    initial_log_std: float

    @nn.compact
    def __call__(self, features: jax.Array) -> DiagonalGaussian:
        """Return policies `[T, B]` of features `[T, B, F]`."""
        mean = Dense(self.action_size, kernel_init=orthogonal(_POLICY_GAIN), name="mean")
        log_std = self.param("log_std", constant(self.initial_log_std), (self.action_size,))
        mean = mean(features)
        return DiagonalGaussian(mean=mean, log_std=jnp.broadcast_to(log_std, mean.shape))

    def encode(self, action: jax.Array) -> jax.Array:
        """Return `[T, B, A]`, the action unchanged."""
        return action


def make_policy_head(
    action_space: gymnasium.Space, *, agent: str, initial_log_std: float
) -> PolicyHead:
    """Return the head for an action space.

    Args:
        action_space: `EnvironmentSpec.action_space`.
        agent: the agent's name, for the error message.
        initial_log_std: the initial log std of the agent's continuous actions.

    Raises:
        ConfigError: no head supports the action space.
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
        f" MultiDiscrete actions from 0 on, or a continuous vector (Box), got {action_space}"
    )
