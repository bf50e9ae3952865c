"""A Q network with LayerNorm before each activation, for Q-learning without a target network."""

from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen.initializers import he_normal

from sebulba.errors import ConfigError
from sebulba.toolkit.convolutions import Conv
from sebulba.toolkit.torsos import ObservationTorso, check_network, flatten
from sebulba.types import PyTree

# Features, kernel and stride of each convolution.
_CONVOLUTIONS = {
    "minatar": ((16, 3, 1),),
    "dqn": ((32, 8, 4), (64, 4, 2), (64, 3, 1)),
}


class NormalizedQNetwork(nn.Module):
    """Convolutions or the user's network, dense layers with LayerNorm and ReLU, a linear head.

    Gallici et al. 2025 (arXiv 2407.04811), section 3, and their code's networks.
    """

    num_actions: int
    network: Any  # `PQNConfig.network`
    hidden_sizes: Sequence[int]

    @nn.compact
    def __call__(self, observation: PyTree) -> jax.Array:
        """Return Q `[N, A]` of observations `[N, ...]`."""
        if ":" in self.network:
            x = ObservationTorso(self.network, self.hidden_sizes, name="torso")(observation)
        elif self.network == "mlp":
            x = flatten(observation)
        else:
            (x,) = (_as_float(leaf) for leaf in jax.tree.leaves(observation))
        if self.network == "dqn":
            x = jnp.moveaxis(x, 1, -1)
        for features, kernel, stride in _CONVOLUTIONS.get(self.network, ()):
            x = Conv(
                features, (kernel, kernel), strides=stride, padding="VALID", kernel_init=he_normal()
            )(x)
            x = nn.relu(nn.LayerNorm()(x))
        x = x.reshape(x.shape[0], -1)
        for size in self.hidden_sizes:
            x = nn.relu(nn.LayerNorm()(nn.Dense(size, kernel_init=he_normal())(x)))
        return nn.Dense(self.num_actions)(x)


def check_normalized_network(
    network: Any, hidden_sizes: Sequence[int], observation: PyTree
) -> None:
    """Check that the network accepts the observations.

    Args:
        network: the config's.
        hidden_sizes: the config's.
        observation: `EnvironmentSpec.observation`.

    Raises:
        ConfigError: dqn needs one image with channels first, minatar one with channels last; or
            the user's network breaks its contract.
    """
    if network not in _CONVOLUTIONS:
        return check_network(network, hidden_sizes, observation)
    shapes = [leaf.shape for leaf in jax.tree.leaves(observation)]
    layout, smallest = ("[channels, height, width]", 36)
    if network == "minatar":
        layout, smallest = ("[height, width, channels]", 3)
    sides = shapes[0][1:] if network == "dqn" else shapes[0][:2]
    if len(shapes) != 1 or len(shapes[0]) != 3 or min(sides) < smallest:
        raise ConfigError(
            f"agent.network: {network} expects one image {layout} of at least"
            f" {smallest}×{smallest}, got observations of {' and '.join(map(str, shapes))};"
            " mlp takes any"
        )


def _as_float(leaf: jax.Array) -> jax.Array:
    return leaf.astype(jnp.float32) / (255.0 if leaf.dtype == jnp.uint8 else 1.0)
