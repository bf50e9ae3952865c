"""Named random streams: every consumer of randomness has its own, derived in one way."""

import zlib

import jax
import numpy as np


def stream(key: jax.Array, *names: str | int) -> jax.Array:
    """Return the key of the stream that `names` name, such as `stream(key, "actor", 3)`.

    Streams of different names are independent, and adding one changes no other: `split` would give
    each stream a number that depends on how many there are.
    """
    for name in names:
        key = jax.random.fold_in(key, _as_uint32(name))
    return key


def environment_seed(seed: int, *names: str | int) -> int:
    """Return a seed in `[0, 2**31)` for an environment library, for the stream of `names`.

    Hashed, since libraries seed environment `i` of a batch with `seed + i`: consecutive seeds would
    make the batches of two actors overlap.
    """
    entropy = [seed, *(_as_uint32(name) for name in names)]
    return int(np.random.SeedSequence(entropy).generate_state(1)[0] >> 1)


def _as_uint32(name: str | int) -> int:
    return zlib.crc32(name.encode()) if isinstance(name, str) else name
