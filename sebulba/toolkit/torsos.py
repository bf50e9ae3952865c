"""Torsos: observations in, features out; dense layers for vectors, convolutions for images.

`ObservationTorso` is the network that a config names. Observations are arrays, or dicts and tuples
of them. A leaf with three axes is an image. Its channels are the first or the last axis, whichever
leaves the squarer image, the last if both leave the same. uint8 leaves are divided by 255.
"""

import functools
import inspect
from collections.abc import Callable, Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen.initializers import orthogonal
from jax.typing import DTypeLike

from sebulba.errors import ConfigError, calling
from sebulba.pytree import describe_inline
from sebulba.references import load
from sebulba.task import has_channels_last
from sebulba.toolkit.convolutions import Conv, max_pool
from sebulba.toolkit.dense import Dense
from sebulba.toolkit.distributions import one_hot
from sebulba.toolkit.settings import TorsoSettings
from sebulba.types import PyTree

_HIDDEN_GAIN = 2**0.5


class MLPTorso(nn.Module):
    """Dense layers on all leaves of an observation, flattened and concatenated."""

    hidden_sizes: Sequence[int]
    dtype: DTypeLike = jnp.float32  # of the computation; parameters and features are float32
    activation: Callable[[jax.Array], jax.Array] = nn.tanh

    @nn.compact
    def __call__(self, observation: PyTree) -> jax.Array:
        """Return `[N, hidden_sizes[-1]]` of observations `[N, ...]`."""
        x = flatten(observation)
        for size in self.hidden_sizes:
            x = Dense(size, kernel_init=orthogonal(_HIDDEN_GAIN), dtype=self.dtype)(x)
            x = self.activation(x)
        return x.astype(jnp.float32)


class ShallowTorso(nn.Module):
    """Two convolutions and a dense layer: Espeholt et al. 2018 (arXiv 1802.01561), figure 3."""

    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, observation: jax.Array) -> jax.Array:
        """Return `[N, 256]` of images."""
        x = as_channels_last(observation)
        x = nn.relu(Conv(16, (8, 8), strides=4, padding="VALID", dtype=self.dtype)(x))
        x = nn.relu(Conv(32, (4, 4), strides=2, padding="VALID", dtype=self.dtype)(x))
        x = x.reshape(x.shape[0], -1)
        return nn.relu(Dense(256, kernel_init=orthogonal(_HIDDEN_GAIN), dtype=self.dtype)(x))


class DQNTorso(nn.Module):
    """Three convolutions and a dense layer: Mnih et al. 2015 (Human-level control), Methods."""

    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, observation: jax.Array) -> jax.Array:
        """Return `[N, 512]` of images."""
        x = as_channels_last(observation)
        for features, kernel, stride in ((32, 8, 4), (64, 4, 2), (64, 3, 1)):
            x = Conv(features, (kernel, kernel), strides=stride, padding="VALID", dtype=self.dtype)(
                x
            )
            x = nn.relu(x)
        return nn.relu(Dense(512, dtype=self.dtype)(x.reshape(x.shape[0], -1)))


class DeepTorso(nn.Module):
    """The residual network of Espeholt et al. 2018 (arXiv 1802.01561), figure 3."""

    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, observation: jax.Array) -> jax.Array:
        """Return `[N, 256]` of images."""
        x = as_channels_last(observation)
        for channels in (16, 32, 32):
            x = Conv(channels, (3, 3), dtype=self.dtype)(x)
            x = max_pool(x)
            for _ in range(2):
                residual = Conv(channels, (3, 3), dtype=self.dtype)(nn.relu(x))
                x += Conv(channels, (3, 3), dtype=self.dtype)(nn.relu(residual))
        x = nn.relu(x).reshape(x.shape[0], -1)
        return nn.relu(Dense(256, kernel_init=orthogonal(_HIDDEN_GAIN), dtype=self.dtype)(x))


class SmallTorso(nn.Module):
    """One 3×3 convolution and a dense layer: MinAtar's DQN (Young & Tian 2019, 1903.03176)."""

    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, observation: jax.Array) -> jax.Array:
        """Return `[N, 128]` of images."""
        x = nn.relu(
            Conv(16, (3, 3), padding="VALID", dtype=self.dtype)(as_channels_last(observation))
        )
        return nn.relu(Dense(128, dtype=self.dtype)(x.reshape(x.shape[0], -1)))


_CONVOLUTIONS: dict[str, type[nn.Module]] = {
    "small": SmallTorso,
    "shallow": ShallowTorso,
    "dqn": DQNTorso,
    "deep": DeepTorso,
}
# Smaller images leave no output after the unpadded convolutions.
_SMALLEST_IMAGE = {"small": 3, "shallow": 20, "dqn": 36, "deep": 1}
_MAX_ONE_HOT = 4096


class ObservationTorso(nn.Module):
    """The network that `agent.network` names: observations of any structure in, features out.

    Numbers of a discrete space are one-hot vectors for all networks but the user's.

    - mlp, relu_mlp: tanh or ReLU layers of `hidden_sizes` on all leaves, flattened and
      concatenated.
    - flat: all leaves, flattened and concatenated.
    - small, shallow, dqn, deep: convolutions for each image, an mlp for all other leaves.
    - module:Name: a flax module of the user's, called with `hidden_sizes` and `compute_dtype` if it
      has such fields.
    """

    torso: TorsoSettings

    @nn.compact
    def __call__(self, observation: PyTree) -> jax.Array:
        """Return float32 `[N, F]` of observations `[N, ...]`."""
        network, dtype = self.torso.network, jnp.dtype(self.torso.compute_dtype)
        if ":" in network:
            return jax.tree.map(_float32, _make_own(self.torso)(observation))
        observation = with_one_hot_choices(observation, self.torso.choices)
        if network == "flat":
            return flatten(observation)
        mlp = functools.partial(MLPTorso, self.torso.hidden_sizes, dtype=dtype, name="mlp")
        if network == "mlp":
            return mlp()(observation)
        if network == "relu_mlp":
            return mlp(activation=nn.relu)(observation)
        leaves = jax.tree.leaves(observation)
        images = [leaf for leaf in leaves if _is_image(leaf.shape[1:])]
        others = [leaf for leaf in leaves if not _is_image(leaf.shape[1:])]
        features = []
        for i, image in enumerate(images):
            name = network if i == 0 else f"{network}_{i}"
            features.append(_CONVOLUTIONS[network](dtype=dtype, name=name)(image))
        if others:
            features.append(mlp()(others))
        return jnp.concatenate([_float32(each) for each in features], axis=-1)


def with_one_hot_choices(
    observation: PyTree, choices: tuple[tuple[range, ...], ...] | None
) -> PyTree:
    """Return observations `[N, ...]` with one-hot vectors `[N, F]` in place of discrete leaves.

    Args:
        observation: `[N, ...]`.
        choices: `EnvironmentSpec.choices`. A leaf with more than 4,096 values stays as it is, since
            its first dense layer would be larger than all others.
    """
    if choices is None:
        return observation
    leaves, structure = jax.tree.flatten(observation)

    def encoded(leaf: jax.Array, components: tuple[range, ...]) -> jax.Array:
        if not 0 < sum(map(len, components)) <= _MAX_ONE_HOT:
            return leaf
        # As int32: the difference of two numbers of 8 bits can be out of their range.
        columns = jnp.asarray(leaf, jnp.int32).reshape(len(leaf), -1)
        parts = (
            one_hot(columns[:, i] - values.start, len(values))
            for i, values in enumerate(components)
        )
        return jnp.concatenate(list(parts), axis=-1)

    return jax.tree.unflatten(structure, map(encoded, leaves, choices))


def flatten(observation: PyTree) -> jax.Array:
    """Return all leaves of observations `[N, ...]`, flattened and concatenated: `[N, F]`."""
    leaves = [_as_float(leaf) for leaf in jax.tree.leaves(observation)]
    return jnp.concatenate([leaf.reshape(leaf.shape[0], -1) for leaf in leaves], axis=-1)


def as_channels_last(images: jax.Array) -> jax.Array:
    """Return images `[N, C, H, W]` or `[N, H, W, C]` as float32 `[N, H, W, C]`."""
    x = _as_float(images)
    return x if has_channels_last(x.shape[1:]) else jnp.moveaxis(x, 1, -1)


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


def check_network(torso: TorsoSettings, observation: PyTree) -> None:
    """Check that the network accepts the observations.

    Args:
        torso: the config's.
        observation: `EnvironmentSpec.observation`.

    Raises:
        ConfigError: there is no image, or a too small one, for convolutions; or the user's network
            does not exist, is no flax module, raises, returns no features, or has more than
            parameters.
    """
    if torso.network in _CONVOLUTIONS:
        _check_images(torso, observation)
    elif ":" in torso.network:
        _check_own(torso, observation)


def _check_images(torso: TorsoSettings, observation: PyTree) -> None:
    network = torso.network
    seen = jax.eval_shape(lambda x: with_one_hot_choices(x, torso.choices), _batch_of(observation))
    shapes = [leaf.shape[1:] for leaf in jax.tree.leaves(seen)]
    images = [shape for shape in shapes if _is_image(shape)]
    if not images:
        raise ConfigError(
            f"agent.network: {network} expects an image, an array with three axes, got observations"
            f" of {' and '.join(map(str, shapes))}; mlp takes any"
        )
    smallest = _SMALLEST_IMAGE[network]
    for shape in images:
        height, width = shape[:2] if has_channels_last(shape) else shape[1:]
        if min(height, width) < smallest:
            raise ConfigError(
                f"agent.network: {network} expects images of at least {smallest}×{smallest}, got"
                f" {shape}; small, deep or mlp take smaller ones"
            )


def _make_own(torso: TorsoSettings) -> nn.Module:
    network = torso.network
    factory = load(network, key="agent.network")
    settings = {"hidden_sizes": torso.hidden_sizes, "compute_dtype": torso.compute_dtype}
    module = None
    if callable(factory) and not isinstance(factory, nn.Module):
        given = f"those of {' and '.join(settings)} that are parameters"
        with calling(f"agent.network: {network}", given=given):
            taken = inspect.signature(factory).parameters
            module = factory(**{name: value for name, value in settings.items() if name in taken})
    if not isinstance(module, nn.Module):
        got = factory if module is None else module
        raise ConfigError(
            f"agent.network: expected {network} to be a flax.linen.Module class, or a function"
            f" that returns a module, got {type(got).__name__}. For flax NNX, wrap it:"
            " docs/tutorials/own_network.md"
        )
    return module


def _check_own(torso: TorsoSettings, observation: PyTree) -> None:
    network, batch = torso.network, _batch_of(observation)
    with calling(f"agent.network: {network}", given=f"observations {describe_inline(batch)}"):
        features, variables = jax.eval_shape(
            lambda x: ObservationTorso(torso).init_with_output(jax.random.key(0), x), batch
        )
    if not (
        isinstance(features, jax.ShapeDtypeStruct)
        and features.ndim == 2
        and features.shape[0] == 2
        and jnp.issubdtype(features.dtype, jnp.floating)
    ):
        raise ConfigError(
            f"agent.network: expected {network} to return features, floats of the shape [N, F], for"
            f" N observations, got {describe_inline(features)} for observations"
            f" {describe_inline(batch)}"
        )
    if others := set(variables) - {"params"}:
        raise ConfigError(
            f"agent.network: expected {network} to have parameters only, got {' and '.join(others)}"
            " too; acting and learning are pure functions of the parameters"
        )
    with calling(f"agent.network: {network}", given="parameters, and no other random numbers"):
        jax.eval_shape(ObservationTorso(torso).apply, variables, batch)


def _batch_of(observation: PyTree) -> PyTree:
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((2, *leaf.shape), leaf.dtype), observation
    )


def _float32(x: jax.Array) -> jax.Array:
    return x.astype(jnp.float32) if jnp.issubdtype(x.dtype, jnp.floating) else x


def _is_image(shape: tuple[int, ...]) -> bool:
    """Whether an observation leaf, without batch axis, is an image."""
    return len(shape) == 3


def _as_float(observation: jax.Array) -> jax.Array:
    scale = 255.0 if observation.dtype == jnp.uint8 else 1.0
    return observation.astype(jnp.float32) / scale
