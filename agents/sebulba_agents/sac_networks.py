"""The policy and the twin critics of soft actor-critic."""

from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp

from sebulba.pytree import pytree_dataclass
from sebulba.types import PyTree

# As in the authors' code; the ends are far from what is learned.
_LOG_STD_BOUNDS = (-20.0, 2.0)


@pytree_dataclass
class GaussianParameters:
    """Of the Gaussian before the tanh."""

    mean: jax.Array  # [N, A]
    log_std: jax.Array  # [N, A]


class GaussianPolicy(nn.Module):
    """ReLU layers; mean and standard deviation of each component of the action."""

    action_size: int
    hidden_sizes: Sequence[int]

    @nn.compact
    def __call__(self, observation: PyTree) -> GaussianParameters:
        """Returns `[N, A]` parameters of observations `[N, ...]`."""
        x = _hidden_layers(_flatten(observation), self.hidden_sizes)
        log_std = nn.Dense(self.action_size, name="log_std")(x)
        return GaussianParameters(
            mean=nn.Dense(self.action_size, name="mean")(x),
            log_std=jnp.clip(log_std, *_LOG_STD_BOUNDS),
        )


class Critic(nn.Module):
    """ReLU layers on observation and action; one value."""

    hidden_sizes: Sequence[int]

    @nn.compact
    def __call__(self, observation: PyTree, action: jax.Array) -> jax.Array:
        """Returns `[N]` of observations `[N, ...]` and actions `[N, A]`."""
        x = jnp.concatenate([_flatten(observation), action], axis=-1)
        return nn.Dense(1)(_hidden_layers(x, self.hidden_sizes))[..., 0]


class TwinCritics(nn.Module):
    """Two critics with parameters of their own, as one batched computation."""

    hidden_sizes: Sequence[int]

    @nn.compact
    def __call__(self, observation: PyTree, action: jax.Array) -> jax.Array:
        """Returns `[2, N]` of observations `[N, ...]` and actions `[N, A]`."""
        twins = nn.vmap(
            Critic,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            in_axes=None,
            axis_size=2,
        )
        return twins(self.hidden_sizes)(observation, action)


def _hidden_layers(x: jax.Array, sizes: Sequence[int]) -> jax.Array:
    for size in sizes:
        x = nn.relu(nn.Dense(size)(x))
    return x


def _flatten(observation: PyTree) -> jax.Array:
    """Returns `[N, F]`: all leaves of observations `[N, ...]` joined."""
    leaves = [leaf.astype(jnp.float32) for leaf in jax.tree.leaves(observation)]
    return jnp.concatenate([leaf.reshape(leaf.shape[0], -1) for leaf in leaves], axis=-1)
