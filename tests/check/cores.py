"""Recurrent cores other than the LSTM: a complex state, and attention after LayerNorm."""

import flax.linen as nn
import jax
import jax.numpy as jnp

_WINDOW = 4


class LRU(nn.Module):
    """A linear recurrent unit with a complex state (Orvieto et al. 2023, arXiv 2303.06349)."""

    size: int
    resets: bool = True

    @nn.compact
    def __call__(self, inputs, is_first, state):
        log_decay = self.param("log_decay", nn.initializers.constant(-1.0), (self.size,))
        phase = self.param("phase", nn.initializers.uniform(3.0), (self.size,))
        factor = jnp.exp(jax.lax.complex(-jnp.exp(log_decay), phase))
        drive = nn.Dense(2 * self.size)(inputs)
        drive = jax.lax.complex(*jnp.split(drive, 2, axis=-1))

        def step(state, row):
            x, is_first = row
            if self.resets:
                state = jnp.where(is_first[:, None], jnp.zeros_like(state), state)
            state = factor[None] * state + x
            return state, state

        state, states = jax.lax.scan(step, state, (drive, is_first))
        outputs = jnp.concatenate([states.real, states.imag], axis=-1)
        return nn.Dense(self.size)(outputs), state

    def initial_state(self, batch_size):
        return jnp.zeros((batch_size, self.size), jnp.complex64)


class KeepsComplexState(LRU):
    """Never zeroes its state, in acting and learning."""

    resets: bool = False


class Attention(nn.Module):
    """Attention to the inputs of the last rows of the episode, as in GTrXL (arXiv 1910.06764).

    Keys and values are made after a LayerNorm, so a constant added to all of a row's features is
    gone; slots of other episodes are masked.
    """

    size: int

    @nn.compact
    def __call__(self, inputs, is_first, state):
        x = nn.Dense(self.size)(inputs)
        norm, keys_of, values_of, query_of = (
            nn.LayerNorm(),
            nn.Dense(self.size),
            nn.Dense(self.size),
            nn.Dense(self.size),
        )

        def read(window, count, x):
            """Return what each `[B, F]` of x reads from its window `[B, W, F]`."""
            seen = norm(window)
            scores = jnp.einsum("bwf,bf->bw", keys_of(seen), query_of(norm(x)))
            age = jnp.arange(_WINDOW)[None]
            is_there = age >= _WINDOW - count[:, None]
            weights = jax.nn.softmax(jnp.where(is_there, scores, -1e9), axis=-1)
            weights = jnp.where(is_there, weights, 0.0)
            return jnp.einsum("bw,bwf->bf", weights, values_of(seen))

        def step(state, row):
            x, is_first = row
            window, count = state
            count = jnp.where(is_first, 0, count)
            outputs = x + read(window, count, x)
            window = jnp.concatenate([window[:, 1:], x[:, None]], axis=1)
            return (window, jnp.minimum(count + 1, _WINDOW)), outputs

        # Parameters are made outside of the scan.
        read(state[0], state[1], x[0])
        state, outputs = jax.lax.scan(step, state, (x, is_first))
        return outputs, state

    def initial_state(self, batch_size):
        window = jnp.zeros((batch_size, _WINDOW, self.size), jnp.float32)
        return window, jnp.zeros(batch_size, jnp.int32)
