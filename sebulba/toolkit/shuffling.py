"""Random permutations that are fast on a CPU."""

import math

import jax
import jax.numpy as jnp

_MAX_SIZE = 2**16  # longer ones leave too few random bits


def shuffle(key: jax.Array, values: jax.Array) -> jax.Array:
    """Return `values` `[N]` in a random order.

    As `jax.random.permutation`, which sorts pairs of random bits and values. A sort of single
    words, with random bits above and positions below, is several times faster on a CPU. Entries
    with the same random bits keep their order, so there are as many rounds as make this rare: as
    in JAX, the chance of two entries that keep it in every round is about 1 / N.
    """
    size = values.shape[0]
    if size > _MAX_SIZE:
        return jax.random.permutation(key, values)
    if size < 2:
        return values
    position_bits = (size - 1).bit_length()
    num_rounds = math.ceil(3 * math.log(size) / math.log(2 ** (32 - position_bits) - 1))
    mask = jnp.uint32(2**position_bits - 1)
    positions = jnp.arange(size, dtype=jnp.uint32)
    order = positions
    for bits in jax.random.bits(key, (num_rounds, size)):
        order = order[jax.lax.sort((bits & ~mask) | positions) & mask]
    return values[order]
