"""MuZero's networks: representation, dynamics and prediction.

Schrittwieser et al. 2020 (arXiv 1911.08265), appendix F. A latent state is a vector `[N, L]`, or
with `resnet` an image `[N, H, W, C]` of at most 10×10. Each is scaled to [0, 1].
"""

import dataclasses
from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen.initializers import zeros_init

from sebulba.errors import ConfigError
from sebulba.pytree import pytree_dataclass
from sebulba.toolkit.convolutions import Conv
from sebulba.toolkit.dense import Dense, LayerNorm
from sebulba.toolkit.distributions import one_hot
from sebulba.toolkit.settings import TorsoSettings
from sebulba.toolkit.torsos import ObservationTorso, as_channels_last, check_network
from sebulba.types import PyTree, RunSpec
from sebulba_agents.planning import Root, Step
from sebulba_agents.replay_config import GumbelMuZeroConfig
from sebulba_agents.two_hot import TwoHot

# Rows or columns. MinAtar's images have 10, and its rewards depend on single cells.
_MAX_LATENT_SIZE = 10
_HEAD_CHANNELS = 16
_MIN_LATENT_RANGE = 0.1


@pytree_dataclass
class Prediction:
    """Policy and value of latent states."""

    policy: jax.Array  # [N, A] logits
    value: jax.Array  # [N, bins] logits


class MuZeroNetwork(nn.Module):
    """The three functions, as methods; `__call__` runs each once, for `init`."""

    num_actions: int
    config: GumbelMuZeroConfig
    torso: TorsoSettings

    def setup(self) -> None:
        """Choose vectors or images as latent states."""
        config = self.config
        if self.torso.network == "resnet":
            self.representation = ImageRepresentation(config.channels, config.num_blocks)
            self.dynamics = ImageDynamics(
                config.channels, config.num_blocks, config.model_sizes, config.num_bins
            )
        else:
            self.representation = VectorRepresentation(self.torso, config.latent_size)
            self.dynamics = VectorDynamics(config.latent_size, config.model_sizes, config.num_bins)
        self.prediction = Heads(config.model_sizes, (self.num_actions, config.num_bins))

    def __call__(self, observation: PyTree) -> tuple[jax.Array, Prediction]:
        """Return reward logits and the prediction after one action in observations `[N, ...]`."""
        latent = self.represent(observation)
        action = jnp.zeros(latent.shape[:1], jnp.int32)
        latent, reward = self.step(latent, action)
        return reward, self.predict(latent)

    def represent(self, observation: PyTree) -> jax.Array:
        """Return the latent states `[N, ...]` of observations `[N, ...]`."""
        return scale_to_unit(self.representation(observation))

    def step(self, latent: jax.Array, action: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the next latent states, and logits `[N, bins]` of the rewards on arriving there.

        Args:
            latent: `[N, ...]`.
            action: `[N]` int32.
        """
        encoded = one_hot(action, self.num_actions).astype(latent.dtype)
        latent, reward = self.dynamics(latent, encoded)
        return scale_to_unit(latent), reward

    def predict(self, latent: jax.Array) -> Prediction:
        """Return the prediction for latent states `[N, ...]`."""
        policy, value = self.prediction(latent)
        return Prediction(policy=policy, value=value)


class VectorRepresentation(nn.Module):
    """The network that the config names, and a linear layer."""

    torso: TorsoSettings
    latent_size: int

    @nn.compact
    def __call__(self, observation: PyTree) -> jax.Array:
        """Return `[N, L]`."""
        features = ObservationTorso(self.torso)(observation)
        return Dense(self.latent_size)(features)


class VectorDynamics(nn.Module):
    """Dense layers on latent state and action, whose output is added to the latent state."""

    latent_size: int
    sizes: Sequence[int]
    num_bins: int

    @nn.compact
    def __call__(self, latent: jax.Array, action: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return `[N, L]` and reward logits, for actions `[N, A]`."""
        x = _dense_layers(jnp.concatenate([latent, action], axis=-1), self.sizes)
        reward = Dense(self.num_bins, kernel_init=zeros_init(), name="reward")(x)
        return latent + Dense(self.latent_size)(x), reward


class ImageRepresentation(nn.Module):
    """Convolutions and residual blocks; strides of 2 until the image is small."""

    channels: int
    num_blocks: int

    @nn.compact
    def __call__(self, observation: jax.Array) -> jax.Array:
        """Return `[N, H, W, C]` of images `[N, ...]`, channels first or last."""
        (image,) = jax.tree.leaves(observation)
        x = as_channels_last(image)
        x = nn.relu(Conv(self.channels, (3, 3), strides=1 if _is_small(x) else 2)(x))
        while not _is_small(x):
            x = ResidualBlock(self.channels)(x)
            x = nn.relu(Conv(self.channels, (3, 3), strides=2)(x))
        for _ in range(self.num_blocks):
            x = ResidualBlock(self.channels)(x)
        return x


class ImageDynamics(nn.Module):
    """A convolution of latent state and action planes, and residual blocks."""

    channels: int
    num_blocks: int
    sizes: Sequence[int]
    num_bins: int

    @nn.compact
    def __call__(self, latent: jax.Array, action: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return `[N, H, W, C]` and reward logits, for actions `[N, A]`."""
        planes = jnp.broadcast_to(action[:, None, None], (*latent.shape[:3], action.shape[-1]))
        x = Conv(self.channels, (3, 3))(jnp.concatenate([latent, planes], axis=-1))
        x = nn.relu(latent + _image_norm()(x))
        for _ in range(self.num_blocks):
            x = ResidualBlock(self.channels)(x)
        (reward,) = Heads(self.sizes, (self.num_bins,), name="reward")(x)
        return x, reward


class ResidualBlock(nn.Module):
    """Two normalised convolutions around which the input is added."""

    channels: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Return `[N, H, W, C]`."""
        y = nn.relu(_image_norm()(Conv(self.channels, (3, 3))(x)))
        y = _image_norm()(Conv(self.channels, (3, 3))(y))
        return nn.relu(x + y)


class Heads(nn.Module):
    """Dense layers and several linear outputs, which are 0 before the first update."""

    sizes: Sequence[int]
    outputs: Sequence[int]

    @nn.compact
    def __call__(self, latent: jax.Array) -> list[jax.Array]:
        """Return `[N, output]` for each output."""
        if latent.ndim > 2:
            latent = nn.relu(Conv(_HEAD_CHANNELS, (1, 1))(latent))
        x = _dense_layers(latent.reshape(latent.shape[0], -1), self.sizes)
        return [Dense(size, kernel_init=zeros_init())(x) for size in self.outputs]


def scale_to_unit(latent: jax.Array) -> jax.Array:
    """Return latent states `[N, ...]`, each scaled to [0, 1] (appendix G of the paper).

    One whose entries differ by less than 0.1 is only shifted and multiplied by 10. Gradients pass
    here in every unrolled step, and those of a constant image would overflow after a few.
    """
    flat = latent.reshape(latent.shape[0], -1)
    # By index: the gradient of `jnp.max` compares with a maximum that XLA may compute again, and is
    # NaN if rounding then leaves no equal entry.
    least, most = (
        jnp.take_along_axis(flat, index[:, None], axis=1)
        for index in (jnp.argmin(flat, axis=1), jnp.argmax(flat, axis=1))
    )
    scaled = (flat - least) / jnp.maximum(most - least, _MIN_LATENT_RANGE)
    return scaled.reshape(latent.shape)


@dataclasses.dataclass(frozen=True)
class LearnedModel:
    """The networks as a `sebulba_agents.planning.Model`."""

    network: MuZeroNetwork
    value: TwoHot
    reward: TwoHot
    discount: float

    def represent(self, params: PyTree, observation: PyTree) -> jax.Array:
        """Return latent states; see `MuZeroNetwork.represent`."""
        return self.network.apply(params, observation, method="represent")

    def advance(
        self, params: PyTree, latent: jax.Array, action: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Return next latent states and reward logits; see `MuZeroNetwork.step`."""
        return self.network.apply(params, latent, action, method="step")

    def predict(self, params: PyTree, latent: jax.Array) -> Prediction:
        """Return the prediction for latent states; see `MuZeroNetwork.predict`."""
        return self.network.apply(params, latent, method="predict")

    def root(self, params: PyTree, observation: PyTree) -> Root:
        """Return what the networks predict for observations."""
        latent = self.represent(params, observation)
        prediction = self.predict(params, latent)
        value = self.value.decode(prediction.value)
        return Root(policy=prediction.policy, value=value, latent=latent)

    def step(self, params: PyTree, latent: PyTree, action: jax.Array) -> Step:
        """Return what the networks predict after an action; an absorbing state ends an episode."""
        latent, reward = self.advance(params, latent, action)
        prediction = self.predict(params, latent)
        return Step(
            reward=self.reward.decode(reward),
            discount=jnp.full(action.shape, self.discount, jnp.float32),
            policy=prediction.policy,
            value=self.value.decode(prediction.value),
            latent=latent,
        )


def scale_gradient(x: jax.Array, scale: float) -> jax.Array:
    """Return `x`, with gradients times `scale`."""
    return scale * x + (1.0 - scale) * jax.lax.stop_gradient(x)


def check_muzero(config: GumbelMuZeroConfig, run_spec: RunSpec) -> None:
    """Check that settings and network suit each other and the environment.

    Raises:
        ConfigError: `num_bins` is even, or the network does not accept the observations.
    """
    if config.num_bins % 2 == 0:
        raise ConfigError(f"agent.num_bins: expected an odd number, got {config.num_bins}")
    observation = run_spec.environment.observation
    if config.network != "resnet":
        check_network(config.torso_for(run_spec.environment), observation)
        return
    if config.compute_dtype != "float32":
        raise ConfigError(
            f"agent.compute_dtype: resnet computes in float32, got {config.compute_dtype}"
        )
    shapes = [leaf.shape for leaf in jax.tree.leaves(observation)]
    if len(shapes) != 1 or len(shapes[0]) != 3:
        raise ConfigError(
            f"agent.network: resnet expects one image, an array with three axes, got observations"
            f" of {' and '.join(map(str, shapes))}; mlp takes any"
        )


def _dense_layers(x: jax.Array, sizes: Sequence[int]) -> jax.Array:
    for size in sizes:
        x = nn.relu(LayerNorm()(Dense(size)(x)))
    return x


def _image_norm() -> nn.LayerNorm:
    """Return a normalisation over complete images; one pixel alone may be black in all channels.

    A constant image multiplies gradients by 1/√ε in every normalisation of every unrolled step.
    """
    return nn.LayerNorm(epsilon=1e-2, reduction_axes=(1, 2, 3), feature_axes=-1)


def _is_small(images: jax.Array) -> bool:
    return max(images.shape[1:3]) <= _MAX_LATENT_SIZE
