"""The gated Transformer-XL as a recurrent core; `cores` has the contract.

Parisotto et al. 2020, "Stabilizing Transformers for Reinforcement Learning" (arXiv 1910.06764),
with the relative positions of Transformer-XL (Dai et al. 2019, arXiv 1901.02860, appendix B).
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from sebulba.errors import ConfigError
from sebulba.pytree import pytree_dataclass
from sebulba.ranges import Count
from sebulba.toolkit.dense import Dense, LayerNorm

# Of the update gates before training: a layer is then nearly the identity (section 3.2).
_GATE_BIAS = 2.0


@pytree_dataclass
class GTrXLState:
    """What `B` environments remember of the last M rows of their episodes, the oldest first."""

    rows: jax.Array  # [B, layers, M, size], the inputs of each layer; zeros where there is no row
    num_rows: jax.Array  # [B] int32, of the running episode, at most M


class GTrXLCore(nn.Module):
    """Gated layers of attention to the last `memory_length` rows of the episode.

    A row attends to itself and to the M rows before it, in each layer, in acting as in learning:
    an unroll is computed in blocks of M rows, each of which attends to itself and to the M rows
    before it. Within an unroll, gradients flow through all of these rows; in the paper they end at
    the start of each segment. The state is the last M rows and not a ring: attention reads them all
    for every row, and moving them costs little beside that.
    """

    size: int
    memory_length: Count = 32
    """Rows before a row that each layer attends to, M."""
    heads: Count = 4
    """Attention heads; a divisor of the size."""
    layers: Count = 2
    """Layers. The paper: 12."""

    def __post_init__(self):
        """Check that the heads divide the size.

        Raises:
            ConfigError: they do not.
        """
        super().__post_init__()
        if self.size % self.heads:
            raise ConfigError(
                f"agent.core_options.heads: expected a divisor of agent.lstm_size {self.size}, got"
                f" {self.heads}"
            )

    @nn.compact
    def __call__(
        self, inputs: jax.Array, is_first: jax.Array, state: GTrXLState
    ) -> tuple[jax.Array, GTrXLState]:
        """Unroll over time.

        Args:
            inputs: `[T, B, F]`.
            is_first: `[T, B]` bool, rows before which everything is forgotten.
            state: before row 0.

        Returns:
            `[T, B, size]`, and the state after row `T - 1`.
        """
        length, memory = len(inputs), self.memory_length
        age = jnp.arange(memory, 0, -1)[:, None]
        # The number of each row's episode in the unroll; memory belongs to the first, or to none.
        episode = jnp.cumsum(is_first.astype(jnp.int32), axis=0)
        before = jnp.where(age <= state.num_rows[None], 0, -1)
        episodes = jnp.concatenate([before, episode])
        is_kept = episodes[length:] == episodes[-1:]
        # Not a product with the mask, which would keep a NaN.
        held = jnp.where((before == 0)[..., None, None], state.rows.transpose(2, 0, 1, 3), 0.0)

        x, rows = Dense(self.size)(inputs), []
        for number in range(self.layers):
            known = jnp.concatenate([held[:, :, number], x])
            rows.append(jnp.where(is_kept[..., None], known[length:], 0.0))
            x = _Layer(self.heads, memory, name=f"layer_{number}")(known, episodes)
        after = GTrXLState(
            rows=jnp.stack(rows).transpose(2, 0, 1, 3),
            num_rows=jnp.sum(is_kept, axis=0, dtype=jnp.int32),
        )
        return x, after

    def initial_state(self, batch_size: int) -> GTrXLState:
        """Return the state of `batch_size` environments that remember no row."""
        rows = jnp.zeros((batch_size, self.layers, self.memory_length, self.size), jnp.float32)
        return GTrXLState(rows=rows, num_rows=jnp.zeros(batch_size, jnp.int32))


class _Layer(nn.Module):
    """Attention and two dense layers, each after a LayerNorm and before a gate: equations 6–9."""

    heads: int
    memory_length: int

    @nn.compact
    def __call__(self, known: jax.Array, episodes: jax.Array) -> jax.Array:
        """Return `[T, B, size]`, of the layer's inputs of M rows of memory and T rows.

        Args:
            known: `[M + T, B, size]`.
            episodes: `[M + T, B]` int32.
        """
        size, x = known.shape[-1], known[self.memory_length :]
        attention = _Attention(self.heads, self.memory_length, name="attention")
        read = attention(LayerNorm()(known), episodes)
        x = _Gate(name="attention_gate")(x, nn.relu(read))
        hidden = nn.relu(Dense(2 * size)(LayerNorm()(x)))
        return _Gate(name="dense_gate")(x, nn.relu(Dense(size)(hidden)))


class _Gate(nn.Module):
    """A GRU over depth, whose state is `x` and whose input is `y` (section 3.2)."""

    @nn.compact
    def __call__(self, x: jax.Array, y: jax.Array) -> jax.Array:
        """Return `[..., size]`, of `x` and `y` `[..., size]`."""
        size = x.shape[-1]
        reset, update, candidate = jnp.split(Dense(3 * size)(y), 3, axis=-1)
        init = nn.initializers.lecun_normal()
        of_reset, of_update = jnp.split(
            x @ self.param("gate_kernel", init, (size, 2 * size)), 2, axis=-1
        )
        reset = nn.sigmoid(reset + of_reset)
        update = nn.sigmoid(update + of_update - _GATE_BIAS)
        kernel = self.param("candidate_kernel", init, (size, size))
        return (1.0 - update) * x + update * nn.tanh(candidate + (reset * x) @ kernel)


class _Attention(nn.Module):
    """Attention of each row to itself and to the M rows of its episode before it."""

    heads: int
    memory_length: int

    @nn.compact
    def __call__(self, known: jax.Array, episodes: jax.Array) -> jax.Array:
        """Return `[T, B, size]`; arguments as of `_Layer`, after LayerNorm."""
        memory, size = self.memory_length, known.shape[-1]
        length = len(known) - memory
        queries = self._heads_of(Dense(size)(known[memory:]))
        keys, values = (self._heads_of(Dense(size)(known)) for _ in range(2))
        # A weight of 0 would not keep a NaN of another episode away. In the row's own episode the
        # key, and with it the row's output, is not finite either.
        values = jnp.where(jnp.isfinite(values), values, 0.0)
        positions = self._heads_of(Dense(size)(_sinusoids(memory, size)))
        of_content = self.param("content_bias", nn.initializers.zeros, queries.shape[2:])
        of_position = self.param("position_bias", nn.initializers.zeros, queries.shape[2:])

        # Blocks of rows, and with each the M rows before it.
        block = min(length, memory)
        starts = range(0, length, block)
        padding = [(0, len(starts) * block - length)]

        def in_blocks(x: jax.Array, rows: int) -> jax.Array:
            x = jnp.pad(x, padding + [(0, 0)] * (x.ndim - 1))
            return jnp.stack([x[start : start + rows] for start in starts])

        queries = in_blocks(queries, block)
        keys, values = in_blocks(keys, memory + block), in_blocks(values, memory + block)
        scores = jnp.einsum("ntbhd,nsbhd->nbhts", queries + of_content[None, None, None], keys)
        by_distance = jnp.einsum(
            "ntbhd,rhd->nbhtr", queries + of_position[None, None, None], positions
        )
        scores = (scores + _by_key(by_distance, memory + block)) * queries.shape[-1] ** -0.5

        # Key s is `row + M - s` rows before a row; another episode's rows are not looked at.
        distance = np.arange(block)[:, None] + memory - np.arange(memory + block)[None]
        is_near = (distance >= 0) & (distance <= memory)
        of_keys = in_blocks(episodes, memory + block).transpose(0, 2, 1)[:, :, None, None]
        of_rows = in_blocks(episodes[memory:], block).transpose(0, 2, 1)[:, :, None, :, None]
        is_seen = (of_keys == of_rows) & is_near[None, None, None]
        # A row always sees itself, so the softmax has a finite score.
        weights = jax.nn.softmax(jnp.where(is_seen, scores, -jnp.inf), axis=-1)
        read = jnp.einsum("nbhts,nsbhd->ntbhd", weights, values)
        read = read.reshape(len(starts) * block, -1, size)[:length]
        return Dense(size)(read)

    def _heads_of(self, x: jax.Array) -> jax.Array:
        return x.reshape(*x.shape[:-1], self.heads, -1)


def _sinusoids(memory: int, size: int) -> np.ndarray:
    """Return `[M + 1, size]` for the distances M, …, 0: sines and cosines of falling frequency."""
    distance = np.arange(memory, -1, -1, dtype=np.float32)[:, None]
    waves = distance * 10_000.0 ** (-np.arange(0, size, 2, dtype=np.float32)[None] / size)
    return np.concatenate([np.sin(waves), np.cos(waves)], axis=-1)[:, :size].astype(np.float32)


def _by_key(by_distance: jax.Array, num_keys: int) -> jax.Array:
    """Return scores `[..., t, s]` of keys, of the scores of distances `[..., t, M + 1]`.

    Entry r of row t belongs to key `t + r`. Appendix B of Transformer-XL: rows that are one entry
    longer than the result's shift by one entry each when they are read as rows of its length.
    """
    *batch, rows, num_distances = by_distance.shape
    longer = jnp.pad(by_distance, [(0, 0)] * (len(batch) + 1) + [(0, num_keys + 1 - num_distances)])
    flat = longer.reshape(*batch, rows * (num_keys + 1))
    return flat[..., : rows * num_keys].reshape(*batch, rows, num_keys)
