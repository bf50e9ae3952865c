"""The LSTM (Hochreiter and Schmidhuber 1997) as a recurrent core; `cores` has the contract."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen.initializers import orthogonal

from sebulba.pytree import pytree_dataclass
from sebulba.toolkit.dense import Dense
from sebulba.toolkit.scans import scan_rows


@pytree_dataclass
class LSTMState:
    """The recurrent state of `B` environments."""

    hidden: jax.Array  # [B, size]
    cell: jax.Array  # [B, size]


class LSTMCore(nn.Module):
    """An LSTM over time, whose state is zeroed where an episode begins.

    The forget gate has a constant bias of 1 (Jozefowicz et al. 2015, "An Empirical Exploration of
    Recurrent Network Architectures"), which flax's cells lack.
    """

    size: int

    @nn.compact
    def __call__(
        self, inputs: jax.Array, is_first: jax.Array, state: LSTMState
    ) -> tuple[jax.Array, LSTMState]:
        """Unroll over time.

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
                nn.sigmoid(gates[1] + 1),  # remembers by default, before any training
                nn.sigmoid(gates[2]),
            )
            cell = forget * cell + admit * nn.tanh(gates[3])
            hidden = emit * nn.tanh(cell)
            return LSTMState(hidden=hidden, cell=cell), hidden

        # The gates' input part does not depend on the state: one matrix product for all steps.
        from_inputs = Dense(4 * self.size)(inputs)
        state, outputs = scan_rows(step, state, (from_inputs, is_first))
        return outputs, state

    def initial_state(self, batch_size: int) -> LSTMState:
        """Return the zero state of `batch_size` environments."""
        zeros = jnp.zeros((batch_size, self.size), jnp.float32)
        return LSTMState(hidden=zeros, cell=zeros)


def _init_recurrent_kernel(key: jax.Array, shape: tuple[int, int]) -> jax.Array:
    """Return four orthogonal matrices side by side, one per gate."""
    size = shape[0]
    gates = [orthogonal()(gate_key, (size, size)) for gate_key in jax.random.split(key, 4)]
    return jnp.concatenate(gates, axis=1)
