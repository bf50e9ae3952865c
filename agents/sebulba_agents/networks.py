"""The actor-critic network: torso, optional LSTM, and heads for policy and value.

Observations are `[T, B, ...]`. A single row is an unroll of `T = 1`, so that acting and learning
are the same code.
"""

from collections.abc import Sequence

import flax.linen as nn
import jax
from flax.linen.initializers import orthogonal

from sebulba.pytree import pytree_dataclass
from sebulba.toolkit.distributions import Distribution
from sebulba.toolkit.lstm import LSTMCore, LSTMState, join_past
from sebulba.toolkit.policy_heads import PolicyHead
from sebulba.toolkit.torsos import ObservationTorso, Torso, fold_time
from sebulba.types import PyTree

_VALUE_GAIN = 1.0

CoreState = LSTMState | tuple[()]
"""The recurrent state; `()` for a feed-forward network."""


@pytree_dataclass
class PolicyValue:
    """The network's outputs for each row."""

    policy: Distribution  # [T, B]
    values: jax.Array  # [T, B]


class ActorCritic(nn.Module):
    """A policy and a value function.

    A feed-forward network with the mlp torso has one torso per head; all others share one torso,
    since convolutions and LSTMs are expensive.
    """

    policy: PolicyHead
    torso: Torso
    hidden_sizes: Sequence[int]
    lstm_size: int | None

    @nn.compact
    def __call__(
        self,
        observation: PyTree,
        *,
        reward: jax.Array,
        last_action: jax.Array,
        is_first: jax.Array,
        state: CoreState,
    ) -> tuple[PolicyValue, CoreState]:
        """Unroll over consecutive rows.

        Args:
            observation: `[T, B, ...]`.
            reward: `[T, B]`, received with the observation; an input of the LSTM only.
            last_action: `[T, B, ...]`, of the previous row; an input of the LSTM only.
            is_first: `[T, B]` bool, rows before which state, last action and reward are zeroed.
            state: before row 0, as returned by `initial_state`.

        Returns:
            Policy and value of each row, and the state after the last one.
        """
        torso = ObservationTorso(self.torso, self.hidden_sizes, name="torso")
        for_policy = for_value = fold_time(torso, observation)
        if self.lstm_size is not None:
            inputs = join_past(for_policy, reward, self.policy.encode(last_action), is_first)
            for_policy, state = LSTMCore(self.lstm_size, name="core")(inputs, is_first, state)
            for_value = for_policy
        elif self.torso == "mlp":
            torso = ObservationTorso(self.torso, self.hidden_sizes, name="value_torso")
            for_value = fold_time(torso, observation)
        values = nn.Dense(1, kernel_init=orthogonal(_VALUE_GAIN), name="value")
        return PolicyValue(policy=self.policy(for_policy), values=values(for_value)[..., 0]), state

    def initial_state(self, batch_size: int) -> CoreState:
        """Return the zero state of `batch_size` environments."""
        if self.lstm_size is None:
            return ()
        return LSTMCore(self.lstm_size, parent=None).initial_state(batch_size)
