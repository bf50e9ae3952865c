"""Rows of many elements, stored so that a TPU finds each in one piece.

A TPU keeps the last dimension of an array in lanes of 128 elements. XLA lays an array out with as
little padding as possible, so it puts another dimension into the lanes if the last one is no
multiple of 128, and then copies the whole array before it gathers rows: 5.2 GiB in each update from
500,000 frames of 84 × 84. A row that is stored flat, in a multiple of 128 elements, stays in one
piece, and its frame does not have to be padded to 96 × 128.
"""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp

_LANES = 128
# With fewer elements, the padding could be more than an eighth.
_LEAST_ELEMENTS = 8 * _LANES


@functools.partial(jax.tree_util.register_dataclass, data_fields=["flat"], meta_fields=["shape"])
@dataclasses.dataclass(frozen=True)
class WideRows:
    """Rows of many elements; a narrower one is stored as it is."""

    flat: jax.Array  # [streams, length, a multiple of 128]
    shape: tuple[int, ...]  # of one row


def zeros(num_streams: int, length: int, row: jax.ShapeDtypeStruct) -> jax.Array | WideRows:
    """Return `length` rows of zeros for each stream."""
    size = math.prod(row.shape)
    if size < _LEAST_ELEMENTS:
        return jnp.zeros((num_streams, length, *row.shape), row.dtype)
    lanes = -(-size // _LANES) * _LANES
    return WideRows(jnp.zeros((num_streams, length, lanes), row.dtype), row.shape)


def write(
    stored: jax.Array | WideRows, new: jax.Array, stream: jax.Array, place: jax.Array
) -> jax.Array | WideRows:
    """Write rows `[T, B, ...]` into streams `stream`, … from `place` on, in place if donated."""
    new = jnp.moveaxis(new, 0, 1)
    if isinstance(stored, WideRows):
        flat = new.reshape(*new.shape[:2], -1)
        return WideRows(_write(stored.flat, flat, stream, place), stored.shape)
    return _write(stored, new, stream, place)


def gather(stored: jax.Array | WideRows, stream: jax.Array, place: jax.Array) -> jax.Array:
    """Return the rows of streams `[n]` at `place` `[..., n]`: `[..., n, *row]`."""
    if isinstance(stored, WideRows):
        # Gather before the padding is cut off: one index that does both would copy the array.
        flat = stored.flat[stream, place][..., : math.prod(stored.shape)]
        return flat.reshape(*flat.shape[:-1], *stored.shape)
    return stored[stream, place]


def _write(stored: jax.Array, new: jax.Array, stream: jax.Array, place: jax.Array) -> jax.Array:
    start = (stream, place, *(jnp.int32(0),) * (stored.ndim - 2))
    return jax.lax.dynamic_update_slice(stored, new.astype(stored.dtype), start)
