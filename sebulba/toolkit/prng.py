"""Named random streams: every consumer of randomness derives its own key by name."""

import zlib

import jax
import numpy as np


def stream(key: jax.Array, *names: str | int) -> jax.Array:
    """Return the key of a named stream, such as `stream(key, "actor", 3)`.

    Streams of different names are independent. A new stream changes no other, whereas keys from
    `split` depend on the number of streams.
    """
    for name in names:
        key = jax.random.fold_in(key, _as_uint32(name))
    return key


def environment_seed(seed: int, *names: str | int) -> int:
    """Return a seed in `[0, 2**31)` for an environment library, for a named stream.

    The seed is a hash, because libraries seed environment `i` of a batch with `seed + i`: with
    consecutive seeds, the batches of two actors would overlap.
    """
    entropy = [seed, *(_as_uint32(name) for name in names)]
    return int(np.random.SeedSequence(entropy).generate_state(1)[0] >> 1)


def _as_uint32(name: str | int) -> int:
    return zlib.crc32(name.encode()) if isinstance(name, str) else name
