"""Networks of policies and values: a torso, an LSTM core, heads; all of them unroll over time.

Observations are `[T, B, ...]`; a single row is an unroll of `T = 1`, so that acting and learning
are the same code. Time is folded into the batch for everything but the LSTM: the gradients of
convolutions inside a scan are an order of magnitude slower on a CPU.
"""

from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen.initializers import orthogonal

from sebulba.pytree import pytree_dataclass
from sebulba.toolkit.distributions import Distribution
from sebulba.types import PyTree, RunSpec
from sebulba_agents.policies import PolicyHead
from sebulba_agents.torsos import ObservationTorso, Torso

_VALUE_GAIN = 1.0


@pytree_dataclass
class PolicyValue:
    """What an actor-critic network says about each row."""

    policy: Distribution  # [T, B]
    values: jax.Array  # [T, B]


@pytree_dataclass
class LSTMState:
    """The recurrent state of `B` environments."""

    hidden: jax.Array  # [B, size]
    cell: jax.Array  # [B, size]


CoreState = LSTMState | tuple[()]
"""`()` is that of a feed-forward network."""


class LSTMCore(nn.Module):
    """An LSTM over time that starts anew wherever an episode does.

    The forget gate has a constant bias of 1 (Jozefowicz et al. 2015, "An Empirical Exploration of
    Recurrent Network Architectures"), which flax's cells lack.
    """

    size: int

    @nn.compact
    def __call__(
        self, inputs: jax.Array, is_first: jax.Array, state: LSTMState
    ) -> tuple[jax.Array, LSTMState]:
        """Unrolls over time.

        Args:
            inputs: `[T, B, F]`.
            is_first: `[T, B]` bool, rows before which the state is zeroed.
            state: before row 0.

        Returns:
            `[T, B, size]`, and the state after row `T - 1`.
        """
        recurrent_kernel = self.param(
            "recurrent_kernel", _init_recurrent_kernel, (self.size, 4 * self.size)
        )

        def step(state: LSTMState, row: tuple[jax.Array, jax.Array]):
            from_input, is_first = row
            hidden, cell = (
                jnp.where(is_first[:, None], 0.0, leaf) for leaf in (state.hidden, state.cell)
            )
            gates = jnp.split(from_input + hidden @ recurrent_kernel, 4, axis=-1)
            admit, forget, emit = (
                nn.sigmoid(gates[0]),
                nn.sigmoid(gates[1] + 1),
                nn.sigmoid(gates[2]),
            )
            cell = forget * cell + admit * nn.tanh(gates[3])
            hidden = emit * nn.tanh(cell)
            return LSTMState(hidden=hidden, cell=cell), hidden

        # The inputs' part of the gates needs no state: one product for all of time.
        from_inputs = nn.Dense(4 * self.size)(inputs)
        state, outputs = jax.lax.scan(step, state, (from_inputs, is_first))
        return outputs, state

    def initial_state(self, batch_size: int) -> LSTMState:
        """Returns the zero state of `batch_size` environments."""
        zeros = jnp.zeros((batch_size, self.size), jnp.float32)
        return LSTMState(hidden=zeros, cell=zeros)


class ActorCritic(nn.Module):
    """Torso, LSTM if wanted, and the heads of policy and value.

    The feed-forward mlp has a torso for each head; whatever is costly is shared.
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
        """Unrolls consecutive rows.

        Args:
            observation: `[T, B, ...]`.
            reward: `[T, B]`, that came with the observation; only the LSTM is fed it.
            last_action: `[T, B, ...]`, of the row before; only the LSTM is fed it.
            is_first: `[T, B]`, where state, last action and reward are zeroed first.
            state: as `initial_state` gives it, before row 0.

        Returns:
            Policy and value of each row, and the state after the last one.
        """
        for_policy = self._features(observation, name="torso")
        for_value = for_policy
        if self.lstm_size is not None:
            inputs = join_past(for_policy, reward, self.policy.encode(last_action), is_first)
            for_policy, state = LSTMCore(self.lstm_size, name="core")(inputs, is_first, state)
            for_value = for_policy
        elif self.torso == "mlp":
            for_value = self._features(observation, name="value_torso")
        values = nn.Dense(1, kernel_init=orthogonal(_VALUE_GAIN), name="value")
        return PolicyValue(policy=self.policy(for_policy), values=values(for_value)[..., 0]), state

    def initial_state(self, batch_size: int) -> CoreState:
        """Returns the state of `batch_size` environments before anything was seen."""
        if self.lstm_size is None:
            return ()
        return LSTMCore(self.lstm_size, parent=None).initial_state(batch_size)

    def _features(self, observation: PyTree, *, name: str) -> jax.Array:
        """Returns the torso's `[T, B, F]`."""
        leading = jax.tree.leaves(observation)[0].shape[:2]
        folded = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), observation)
        torso = ObservationTorso(self.torso, self.hidden_sizes, name=name)
        return torso(folded).reshape(*leading, -1)


def join_past(
    features: jax.Array,
    reward: jax.Array,
    last_action: jax.Array,
    is_first: jax.Array,
) -> jax.Array:
    """Returns `[T, B, F + 1 + E]`: features, reward and last action; at a reset no past.

    Args:
        features: `[T, B, F]`.
        reward: `[T, B]`.
        last_action: `[T, B, E]`, as numbers: one-hot where it is one of several.
        is_first: `[T, B]` bool.
    """
    past = [reward[..., None], last_action]
    is_reset = is_first[..., None]
    return jnp.concatenate([features, *(jnp.where(is_reset, 0.0, x) for x in past)], axis=-1)


def zero_observation(run_spec: RunSpec, *leading: int) -> PyTree:
    """Returns observations `[*leading, ...]` to initialise a network with."""
    return jax.tree.map(
        lambda leaf: jnp.zeros((*leading, *leaf.shape), leaf.dtype),
        run_spec.environment.observation,
    )


def _init_recurrent_kernel(key: jax.Array, shape: tuple[int, int]) -> jax.Array:
    """Returns four orthogonal matrices side by side, one a gate."""
    size = shape[0]
    gates = [orthogonal()(gate_key, (size, size)) for gate_key in jax.random.split(key, 4)]
    return jnp.concatenate(gates, axis=1)
