"""Networks of action values: a torso, a dueling head, with or without a recurrent core."""

from collections.abc import Sequence
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from sebulba.errors import ConfigError
from sebulba.types import PyTree
from sebulba_agents.networks import LSTMCore, LSTMState, join_past
from sebulba_agents.torsos import DQNTorso, MLPTorso

QTorso = Literal["mlp", "dqn"]


class DuelingHead(nn.Module):
    """`Q = V + A − mean_a A` (Wang et al. 2016, arXiv 1511.06581, equation 9)."""

    num_actions: int
    hidden_size: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns `[..., A]`."""
        value = nn.Dense(1)(nn.relu(nn.Dense(self.hidden_size)(x)))
        advantage = nn.Dense(self.num_actions)(nn.relu(nn.Dense(self.hidden_size)(x)))
        return value + advantage - jnp.mean(advantage, axis=-1, keepdims=True)


class QNetwork(nn.Module):
    """Torso, and a dueling or a linear head."""

    num_actions: int
    torso: QTorso
    hidden_sizes: Sequence[int]
    dueling_size: int | None

    @nn.compact
    def __call__(self, observation: PyTree) -> jax.Array:
        """Returns Q `[N, A]` of observations `[N, ...]`."""
        features = make_torso(self.torso, self.hidden_sizes)(observation)
        if self.dueling_size is None:
            return nn.Dense(self.num_actions)(features)
        return DuelingHead(self.num_actions, self.dueling_size)(features)


class RecurrentQNetwork(nn.Module):
    """Torso, LSTM fed the last reward and action too, dueling head."""

    num_actions: int
    torso: QTorso
    hidden_sizes: Sequence[int]
    lstm_size: int
    dueling_size: int

    @nn.compact
    def __call__(
        self,
        observation: PyTree,
        *,
        reward: jax.Array,
        last_action: jax.Array,
        is_first: jax.Array,
        state: LSTMState,
    ) -> tuple[jax.Array, LSTMState]:
        """Unrolls consecutive rows.

        Args:
            observation: `[T, B, ...]`.
            reward: `[T, B]`, raw, that came with the observation.
            last_action: `[T, B]` int32, of the row before.
            is_first: `[T, B]`, where state, last action and reward are zeroed first.
            state: the LSTM's, before row 0.

        Returns:
            Q `[T, B, A]`, and the LSTM's state after the last row.
        """
        torso = make_torso(self.torso, self.hidden_sizes)
        # Time is folded into the batch: convolutions are slow inside a scan on a CPU.
        folded = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), observation)
        features = torso(folded).reshape(*reward.shape, -1)
        last_action = jax.nn.one_hot(last_action, self.num_actions, dtype=jnp.float32)
        inputs = join_past(features, reward, last_action, is_first)
        x, state = LSTMCore(self.lstm_size)(inputs, is_first, state)
        return DuelingHead(self.num_actions, self.dueling_size)(x), state

    def initial_state(self, batch_size: int) -> LSTMState:
        """Returns the LSTM's state of `batch_size` environments before anything was seen."""
        return LSTMCore(self.lstm_size, parent=None).initial_state(batch_size)


def make_torso(torso: QTorso, hidden_sizes: Sequence[int]) -> nn.Module:
    """Returns the torso that the config names; `hidden_sizes` are the mlp's."""
    return DQNTorso() if torso == "dqn" else MLPTorso(hidden_sizes)


def check_q_torso(torso: QTorso, observation: PyTree) -> None:
    """Raises unless the torso can take the observations.

    Args:
        torso: as the config names it.
        observation: `EnvironmentSpec.observation`.

    Raises:
        ConfigError: dqn, and no image with channels first that its convolutions fit in.
    """
    shapes = [leaf.shape for leaf in jax.tree.leaves(observation)]
    if torso == "dqn" and (len(shapes) != 1 or len(shapes[0]) != 3 or min(shapes[0][1:]) < 36):
        raise ConfigError(
            "agent.torso: dqn expects one image [channels, height, width] of at least 36×36, got"
            f" observations of {' and '.join(map(str, shapes))}; mlp takes any"
        )
