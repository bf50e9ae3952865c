"""Torsos: observations in, features out; tanh layers for vectors, convolutions for images.

Images have channels first, like the frame stacks of EnvPool and ALE. uint8 leaves are divided by
255.
"""

from collections.abc import Callable, Sequence
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen.initializers import orthogonal

from sebulba.errors import ConfigError
from sebulba.toolkit.convolutions import Conv, max_pool
from sebulba.types import PyTree

Torso = Literal["mlp", "shallow", "dqn", "deep"]

_HIDDEN_GAIN = 2**0.5


class MLPTorso(nn.Module):
    """Tanh layers on all leaves of an observation, flattened and concatenated."""

    hidden_sizes: Sequence[int]

    @nn.compact
    def __call__(self, observation: PyTree) -> jax.Array:
        """Return `[N, hidden_sizes[-1]]` of observations `[N, ...]`."""
        leaves = [_as_float(leaf) for leaf in jax.tree.leaves(observation)]
        x = jnp.concatenate([leaf.reshape(leaf.shape[0], -1) for leaf in leaves], axis=-1)
        for size in self.hidden_sizes:
            x = nn.tanh(nn.Dense(size, kernel_init=orthogonal(_HIDDEN_GAIN))(x))
        return x


class ShallowTorso(nn.Module):
    """Two convolutions and a dense layer: Espeholt et al. 2018 (arXiv 1802.01561), figure 3."""

    @nn.compact
    def __call__(self, observation: jax.Array) -> jax.Array:
        """Return `[N, 256]` of images `[N, C, H, W]`."""
        x = _as_channels_last(observation)
        x = nn.relu(Conv(16, (8, 8), strides=4, padding="VALID")(x))
        x = nn.relu(Conv(32, (4, 4), strides=2, padding="VALID")(x))
        x = x.reshape(x.shape[0], -1)
        return nn.relu(nn.Dense(256, kernel_init=orthogonal(_HIDDEN_GAIN))(x))


class DQNTorso(nn.Module):
    """Three convolutions and a dense layer: Mnih et al. 2015 (Human-level control), Methods."""

    @nn.compact
    def __call__(self, observation: jax.Array) -> jax.Array:
        """Return `[N, 512]` of images `[N, C, H, W]`."""
        x = _as_channels_last(observation)
        for features, kernel, stride in ((32, 8, 4), (64, 4, 2), (64, 3, 1)):
            x = Conv(features, (kernel, kernel), strides=stride, padding="VALID")(x)
            x = nn.relu(x)
        return nn.relu(nn.Dense(512)(x.reshape(x.shape[0], -1)))


class DeepTorso(nn.Module):
    """The residual network of Espeholt et al. 2018 (arXiv 1802.01561), figure 3."""

    @nn.compact
    def __call__(self, observation: jax.Array) -> jax.Array:
        """Return `[N, 256]` of images `[N, C, H, W]`."""
        x = _as_channels_last(observation)
        for channels in (16, 32, 32):
            x = Conv(channels, (3, 3))(x)
            x = max_pool(x)
            for _ in range(2):
                residual = Conv(channels, (3, 3))(nn.relu(x))
                x += Conv(channels, (3, 3))(nn.relu(residual))
        x = nn.relu(x).reshape(x.shape[0], -1)
        return nn.relu(nn.Dense(256, kernel_init=orthogonal(_HIDDEN_GAIN))(x))


_CONVOLUTIONS: dict[str, type[nn.Module]] = {
    "shallow": ShallowTorso,
    "dqn": DQNTorso,
    "deep": DeepTorso,
}
# Smaller images leave no output after the unpadded convolutions.
_SMALLEST_IMAGE = {"shallow": 20, "dqn": 36, "deep": 1}


class ObservationTorso(nn.Module):
    """The named torso: convolutions for the image, an mlp for all other leaves."""

    torso: Torso
    hidden_sizes: Sequence[int]

    @nn.compact
    def __call__(self, observation: PyTree) -> jax.Array:
        """Return `[N, F]` of observations `[N, ...]`."""
        if self.torso == "mlp":
            return MLPTorso(self.hidden_sizes, name="mlp")(observation)
        leaves = jax.tree.leaves(observation)
        (image,) = (leaf for leaf in leaves if _is_image(leaf.shape[1:]))
        others = [leaf for leaf in leaves if not _is_image(leaf.shape[1:])]
        features = [_CONVOLUTIONS[self.torso](name=self.torso)(image)]
        if others:
            features.append(MLPTorso(self.hidden_sizes, name="mlp")(others))
        return jnp.concatenate(features, axis=-1)


def fold_time(torso: Callable[[PyTree], jax.Array], observation: PyTree) -> jax.Array:
    """Return features `[T, B, F]` of observations `[T, B, ...]`, with time folded into the batch.

    One large convolution is faster than many small ones.

    Args:
        torso: returns `[N, F]` of observations `[N, ...]`.
        observation: `[T, B, ...]`.
    """
    leading = jax.tree.leaves(observation)[0].shape[:2]
    folded = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), observation)
    return torso(folded).reshape(*leading, -1)


def check_torso(torso: Torso, observation: PyTree) -> None:
    """Check that the torso accepts the observations.

    Args:
        torso: the config's.
        observation: `EnvironmentSpec.observation`.

    Raises:
        ConfigError: a convolutional torso needs exactly one image with channels first.
    """
    if torso == "mlp":
        return
    shapes = [tuple(leaf.shape) for leaf in jax.tree.leaves(observation)]
    images = [shape for shape in shapes if _is_image(shape)]
    # More channels than columns: most likely an image with channels last.
    if len(images) != 1 or images[0][0] > images[0][2]:
        raise ConfigError(
            f"agent.torso: {torso} expects one image [channels, height, width], and possibly"
            f" vectors, got observations of {' and '.join(map(str, shapes))}; mlp takes any"
        )
    smallest = _SMALLEST_IMAGE[torso]
    if min(images[0][1:]) < smallest:
        raise ConfigError(
            f"agent.torso: {torso} expects images of at least {smallest}×{smallest}, got"
            f" {images[0]}; deep or mlp take smaller ones"
        )


def _is_image(shape: tuple[int, ...]) -> bool:
    """Whether an observation leaf, without batch axis, is an image."""
    return len(shape) == 3


def _as_channels_last(images: jax.Array) -> jax.Array:
    return jnp.moveaxis(_as_float(images), 1, -1)


def _as_float(observation: jax.Array) -> jax.Array:
    scale = 255.0 if observation.dtype == jnp.uint8 else 1.0
    return observation.astype(jnp.float32) / scale
