"""A Q network with LayerNorm before each activation, for Q-learning without a target network."""

from collections.abc import Sequence
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen.initializers import he_normal

from sebulba.errors import ConfigError
from sebulba.types import PyTree

NormalizedNetwork = Literal["mlp", "small", "dqn"]

# Features, kernel and stride of each convolution.
_CONVOLUTIONS = {
    "mlp": (),
    "small": ((16, 3, 1),),
    "dqn": ((32, 8, 4), (64, 4, 2), (64, 3, 1)),
}
# Smaller images leave no output after the unpadded convolutions.
_SMALLEST_IMAGE = {"small": 3, "dqn": 36}


class NormalizedQNetwork(nn.Module):
    """Convolutions and dense layers, each with LayerNorm and ReLU, and a linear head.

    Gallici et al. 2025 (arXiv 2407.04811), section 3, and their code's networks.
    """

    num_actions: int
    network: NormalizedNetwork
    hidden_sizes: Sequence[int]

    @nn.compact
    def __call__(self, observation: PyTree) -> jax.Array:
        """Return Q `[N, A]` of observations `[N, ...]`."""
        leaves = [_as_float(leaf) for leaf in jax.tree.leaves(observation)]
        if self.network == "mlp":
            x = jnp.concatenate([leaf.reshape(leaf.shape[0], -1) for leaf in leaves], axis=-1)
        else:
            (x,) = leaves
            x = jnp.moveaxis(x, 1, -1) if _has_channels_first(x.shape[1:]) else x
        for features, kernel, stride in _CONVOLUTIONS[self.network]:
            x = nn.Conv(
                features, (kernel, kernel), strides=stride, padding="VALID", kernel_init=he_normal()
            )(x)
            x = nn.relu(nn.LayerNorm()(x))
        x = x.reshape(x.shape[0], -1)
        for size in self.hidden_sizes:
            x = nn.relu(nn.LayerNorm()(nn.Dense(size, kernel_init=he_normal())(x)))
        return nn.Dense(self.num_actions)(x)


def check_normalized_network(network: NormalizedNetwork, observation: PyTree) -> None:
    """Check that the network accepts the observations.

    Args:
        network: the config's.
        observation: `EnvironmentSpec.observation`.

    Raises:
        ConfigError: convolutions need one image, large enough to convolve.
    """
    if network == "mlp":
        return
    shapes = [leaf.shape for leaf in jax.tree.leaves(observation)]
    smallest = _SMALLEST_IMAGE[network]
    if len(shapes) != 1 or len(shapes[0]) != 3 or sorted(shapes[0])[1] < smallest:
        raise ConfigError(
            f"agent.network: {network} expects one image of at least {smallest}×{smallest}, got"
            f" observations of {' and '.join(map(str, shapes))}; mlp takes any"
        )


def _has_channels_first(shape: tuple[int, ...]) -> bool:
    """Whether the channels of an image are its first axis: the shorter one of first and last."""
    return shape[0] <= shape[2]


def _as_float(leaf: jax.Array) -> jax.Array:
    return leaf.astype(jnp.float32) / (255.0 if leaf.dtype == jnp.uint8 else 1.0)
