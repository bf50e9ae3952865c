"""A Q network with LayerNorm before each activation, for Q-learning without a target network."""

from collections.abc import Sequence
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen.initializers import he_normal

from sebulba.errors import ConfigError
from sebulba.types import PyTree

NormalizedTorso = Literal["mlp", "minatar", "dqn"]

# Features, kernel and stride of each convolution.
_CONVOLUTIONS = {
    "mlp": (),
    "minatar": ((16, 3, 1),),
    "dqn": ((32, 8, 4), (64, 4, 2), (64, 3, 1)),
}


class NormalizedQNetwork(nn.Module):
    """Convolutions and dense layers, each with LayerNorm and ReLU, and a linear head.

    Gallici et al. 2025 (arXiv 2407.04811), section 3, and their code's networks.
    """

    num_actions: int
    torso: NormalizedTorso
    hidden_sizes: Sequence[int]

    @nn.compact
    def __call__(self, observation: PyTree) -> jax.Array:
        """Return Q `[N, A]` of observations `[N, ...]`."""
        leaves = [_as_float(leaf) for leaf in jax.tree.leaves(observation)]
        if self.torso == "mlp":
            x = jnp.concatenate([leaf.reshape(leaf.shape[0], -1) for leaf in leaves], axis=-1)
        else:
            (x,) = leaves
        if self.torso == "dqn":
            x = jnp.moveaxis(x, 1, -1)
        for features, kernel, stride in _CONVOLUTIONS[self.torso]:
            x = nn.Conv(
                features, (kernel, kernel), strides=stride, padding="VALID", kernel_init=he_normal()
            )(x)
            x = nn.relu(nn.LayerNorm()(x))
        x = x.reshape(x.shape[0], -1)
        for size in self.hidden_sizes:
            x = nn.relu(nn.LayerNorm()(nn.Dense(size, kernel_init=he_normal())(x)))
        return nn.Dense(self.num_actions)(x)


def check_normalized_torso(torso: NormalizedTorso, observation: PyTree) -> None:
    """Check that the torso accepts the observations.

    Args:
        torso: the config's.
        observation: `EnvironmentSpec.observation`.

    Raises:
        ConfigError: dqn needs one image with channels first, minatar one with channels last.
    """
    if torso == "mlp":
        return
    shapes = [leaf.shape for leaf in jax.tree.leaves(observation)]
    layout, smallest = ("[channels, height, width]", 36)
    if torso == "minatar":
        layout, smallest = ("[height, width, channels]", 3)
    sides = shapes[0][1:] if torso == "dqn" else shapes[0][:2]
    if len(shapes) != 1 or len(shapes[0]) != 3 or min(sides) < smallest:
        raise ConfigError(
            f"agent.torso: {torso} expects one image {layout} of at least {smallest}×{smallest},"
            f" got observations of {' and '.join(map(str, shapes))}; mlp takes any"
        )


def _as_float(leaf: jax.Array) -> jax.Array:
    return leaf.astype(jnp.float32) / (255.0 if leaf.dtype == jnp.uint8 else 1.0)
