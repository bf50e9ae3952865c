"""The GRU (Cho et al. 2014) as a recurrent core; `cores` has the contract."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen.initializers import orthogonal

from sebulba.toolkit.dense import Dense, add_bias
from sebulba.toolkit.scans import scan_rows


class GRUCore(nn.Module):
    """A GRU over time, whose state is zeroed where an episode begins.

    The reset gate multiplies the recurrent part of the candidate after its matrix product, as in
    cuDNN and in flax's cell.
    """

    size: int

    @nn.compact
    def __call__(
        self, inputs: jax.Array, is_first: jax.Array, state: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Unroll over time.

        Args:
            inputs: `[T, B, F]`.
            is_first: `[T, B]` bool, rows before which the state is zeroed.
            state: `[B, size]`, before row 0.

        Returns:
            `[T, B, size]`, and the state after row `T - 1`.
        """
        recurrent_kernel = self.param(
            "recurrent_kernel", _init_recurrent_kernel, (self.size, 3 * self.size)
        )
        candidate_bias = self.param("candidate_bias", nn.initializers.zeros, (self.size,))

        def step(hidden: jax.Array, row: tuple[jax.Array, jax.Array]):
            from_input, is_first = row
            hidden = jnp.where(is_first[:, None], 0.0, hidden)
            of_reset, of_update, of_candidate = jnp.split(from_input, 3, axis=-1)
            reset, update, candidate = jnp.split(hidden @ recurrent_kernel, 3, axis=-1)
            reset = nn.sigmoid(of_reset + reset)
            update = nn.sigmoid(of_update + update)
            candidate = nn.tanh(of_candidate + reset * add_bias(candidate, candidate_bias))
            hidden = (1.0 - update) * candidate + update * hidden
            return hidden, hidden

        # The gates' input part does not depend on the state: one matrix product for all steps.
        from_inputs = Dense(3 * self.size)(inputs)
        state, outputs = scan_rows(step, state, (from_inputs, is_first))
        return outputs, state

    def initial_state(self, batch_size: int) -> jax.Array:
        """Return the zero state of `batch_size` environments."""
        return jnp.zeros((batch_size, self.size), jnp.float32)


def _init_recurrent_kernel(key: jax.Array, shape: tuple[int, int]) -> jax.Array:
    """Return three orthogonal matrices side by side, one per gate."""
    size = shape[0]
    gates = [orthogonal()(gate_key, (size, size)) for gate_key in jax.random.split(key, 3)]
    return jnp.concatenate(gates, axis=1)
