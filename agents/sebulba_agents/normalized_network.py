"""A Q network with LayerNorm before each activation, for Q-learning without a target network."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen.initializers import he_normal

from sebulba.errors import ConfigError
from sebulba.toolkit.convolutions import Conv
from sebulba.toolkit.cores import CoreSettings
from sebulba.toolkit.dense import Dense, LayerNorm
from sebulba.toolkit.settings import TorsoSettings
from sebulba.toolkit.torsos import (
    ObservationTorso,
    as_channels_last,
    check_network,
    flatten,
    with_one_hot_choices,
)
from sebulba.types import PyTree
from sebulba_agents.q_learning import RecurrentQNetwork

# Features, kernel and stride of each convolution.
_CONVOLUTIONS: dict[str, tuple[tuple[int, int, int], ...]] = {
    "mlp": (),
    "small": ((16, 3, 1),),
    "shallow": ((16, 8, 4), (32, 4, 2)),
    "dqn": ((32, 8, 4), (64, 4, 2), (64, 3, 1)),
}


class NormalizedQNetwork(nn.Module):
    """Convolutions and dense layers, each with LayerNorm and ReLU, and a linear head.

    Gallici et al. 2025 (arXiv 2407.04811), section 3, and their code's networks. A network of the
    user's replaces all layers but the head, and normalises by itself.
    """

    num_actions: int
    torso: TorsoSettings

    @nn.compact
    def __call__(self, observation: PyTree) -> jax.Array:
        """Return Q `[N, A]` of observations `[N, ...]`."""
        features = _features(self.torso, observation)  # First: flax numbers layers as they are made
        return Dense(self.num_actions)(features)


def recurrent_normalized_q_network(
    *, num_actions: int, torso: TorsoSettings, core: CoreSettings
) -> RecurrentQNetwork:
    """Return the layers of `NormalizedQNetwork` with a core before the head."""
    return RecurrentQNetwork(
        num_actions=num_actions,
        features=functools.partial(_features, torso),
        core=core,
        head=lambda x: Dense(num_actions)(x),
        core_name="core",
    )


def _features(torso: TorsoSettings, observation: PyTree) -> jax.Array:
    """Return the last layer's outputs `[N, F]`, inside of a compact flax module."""
    network, dtype = torso.network, jnp.dtype(torso.compute_dtype)
    if ":" in network:
        return ObservationTorso(torso)(observation)
    if network == "mlp":
        x = flatten(with_one_hot_choices(observation, torso.choices))
    else:
        (x,) = jax.tree.leaves(observation)
        x = as_channels_last(x)
    for features, kernel, stride in _CONVOLUTIONS[network]:
        x = Conv(
            features,
            (kernel, kernel),
            strides=stride,
            padding="VALID",
            kernel_init=he_normal(),
            dtype=dtype,
        )(x)
        x = nn.relu(LayerNorm(dtype=dtype)(x))
    x = x.reshape(x.shape[0], -1)
    for size in torso.hidden_sizes:
        x = Dense(size, kernel_init=he_normal(), dtype=dtype)(x)
        x = nn.relu(LayerNorm(dtype=dtype)(x))
    return x.astype(jnp.float32)


def check_normalized_network(torso: TorsoSettings, observation: PyTree) -> None:
    """Check that there is such a network, and that it accepts the observations.

    Args:
        torso: the config's.
        observation: `EnvironmentSpec.observation`.

    Raises:
        ConfigError: there is no form of the network with LayerNorm, or it does not accept the
            observations.
    """
    network = torso.network
    if network not in _CONVOLUTIONS and ":" not in network:
        names = ", ".join(_CONVOLUTIONS)
        raise ConfigError(
            f"agent.network: expected a network with LayerNorm, one of {names} or module:Name, got"
            f" {network!r}"
        )
    shapes = [leaf.shape for leaf in jax.tree.leaves(observation)]
    if _CONVOLUTIONS.get(network) and len(shapes) != 1:
        raise ConfigError(
            f"agent.network: {network} with LayerNorm expects one image, got observations of"
            f" {' and '.join(map(str, shapes))}; mlp takes any"
        )
    check_network(torso, observation)
