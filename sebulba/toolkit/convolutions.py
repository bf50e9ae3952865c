"""Convolutions and max pooling whose gradients are fast on a CPU, also inside a `lax.scan`.

XLA has fast kernels for convolutions on a CPU, but only with batch, rows, columns and channels in
this order. Of the gradients that JAX derives it reorders those outside of loops only: inside, they
run many times slower. Here they are stated in that order to begin with. The gradient of
`nn.max_pool` is a scatter, which XLA runs slowly everywhere, and a GPU adds its overlapping windows
in any order: the sums of two runs may differ in their last bits.

Images are `[N, H, W, C]`. On other platforms, the gradients of convolutions are those of JAX.
"""

import functools
from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen.initializers import lecun_normal, zeros_init
from flax.typing import Initializer
from jax import lax
from jax.typing import DTypeLike

from sebulba.toolkit.linear import linear_call

_LAYOUT = ("NHWC", "HWIO", "NHWC")

Pads = tuple[tuple[int, int], tuple[int, int]]
_Single = tuple[jax.Array]
_Pair = tuple[jax.Array, jax.Array]


class Conv(nn.Module):
    """A convolution with bias, with the parameters, names and values of `nn.Conv`."""

    features: int
    kernel_size: tuple[int, int]
    strides: int = 1
    padding: str = "SAME"
    kernel_init: Initializer = lecun_normal()
    dtype: DTypeLike | None = None  # of the computation; None: of the images and parameters

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Return `[N, H', W', features]` of images `[N, H, W, C]`."""
        shape = (*self.kernel_size, x.shape[-1], self.features)
        kernel = self.param("kernel", self.kernel_init, shape)
        bias = self.param("bias", zeros_init(), (self.features,))
        x, kernel, bias = nn.dtypes.promote_dtype(x, kernel, bias, dtype=self.dtype)
        return (
            convolve(x, kernel, stride=self.strides, padding=self.padding) + bias[None, None, None]
        )


def convolve(x: jax.Array, kernel: jax.Array, *, stride: int, padding: str) -> jax.Array:
    """Return the convolution `[N, H', W', O]` of images with a kernel `[h, w, C, O]`.

    Args:
        x: images `[N, H, W, C]`.
        kernel: has the dtype of the images.
        stride: the stride along rows and along columns.
        padding: `SAME` or `VALID`.
    """
    strides = (stride, stride)
    (top, bottom), (left, right) = lax.padtype_to_pads(
        x.shape[1:3], kernel.shape[:2], strides, padding
    )
    return _convolve(x, kernel, stride, ((top, bottom), (left, right)))


@functools.partial(jax.custom_jvp, nondiff_argnums=(2, 3))
def _convolve(x: jax.Array, kernel: jax.Array, stride: int, pads: Pads) -> jax.Array:
    return _plain(x, kernel, stride, pads)


@_convolve.defjvp
def _convolve_jvp(stride: int, pads: Pads, primals: _Pair, tangents: _Pair) -> _Pair:
    def tangent(operands: _Pair, tangents: _Pair) -> jax.Array:
        (x, kernel), (of_x, of_kernel) = operands, tangents
        return _plain(of_x, kernel, stride, pads) + _plain(x, of_kernel, stride, pads)

    def cotangents(operands: _Pair, cotangent: jax.Array) -> _Pair:
        def on_cpu(x: jax.Array, kernel: jax.Array, cotangent: jax.Array) -> _Pair:
            return (
                _gradient_of_images(x.shape[1:3], kernel, cotangent, stride, pads),
                _gradient_of_kernel(x, kernel.shape[:2], cotangent, stride, pads),
            )

        def derived(x: jax.Array, kernel: jax.Array, cotangent: jax.Array) -> _Pair:
            (of_x,) = jax.linear_transpose(lambda x: _plain(x, kernel, stride, pads), x)(cotangent)
            transpose = jax.linear_transpose(lambda k: _plain(x, k, stride, pads), kernel)
            return of_x, *transpose(cotangent)

        return lax.platform_dependent(*operands, cotangent, cpu=on_cpu, default=derived)

    return (
        _convolve(*primals, stride, pads),
        linear_call(tangent, cotangents, primals, tangents),
    )


def _plain(x: jax.Array, kernel: jax.Array, stride: int, pads: Pads) -> jax.Array:
    return lax.conv_general_dilated(x, kernel, (stride, stride), pads, dimension_numbers=_LAYOUT)


def _gradient_of_kernel(
    x: jax.Array, size: Sequence[int], gradient: jax.Array, stride: int, pads: Pads
) -> jax.Array:
    """Return `[h, w, C, O]`: channels convolved with their batch of output gradients."""
    ends = [
        stride * (gradient.shape[axis] - 1) + size[axis - 1] - pads[axis - 1][0] for axis in (1, 2)
    ]
    # Rows and columns that no window reached, because of the stride.
    x = x[:, : ends[0], : ends[1]]
    result = lax.conv_general_dilated(
        x.transpose(3, 1, 2, 0),
        gradient.transpose(1, 2, 0, 3),
        window_strides=(1, 1),
        padding=[(pads[axis][0], ends[axis] - x.shape[axis + 1]) for axis in (0, 1)],
        rhs_dilation=(stride, stride),
        dimension_numbers=_LAYOUT,
    )
    return result.transpose(1, 2, 0, 3)


def _gradient_of_images(
    size: Sequence[int], kernel: jax.Array, gradient: jax.Array, stride: int, pads: Pads
) -> jax.Array:
    """Return `[N, H, W, C]`, the sum of what each window adds to its pixels.

    Pixel `stride·u + r` gets from kernel rows `stride·i + r` only. So a convolution that is not
    strided computes all remainders r as channels, twice as fast as one with `stride` − 1 zeros
    between output gradients.
    """
    height, width = (-(-kernel.shape[axis] // stride) for axis in (0, 1))
    channels, features = kernel.shape[2:]
    missing = [(0, stride * n - k) for n, k in zip((height, width), kernel.shape[:2], strict=True)]
    kernel = jnp.pad(kernel, (*missing, (0, 0), (0, 0)))
    kernel = kernel.reshape(height, stride, width, stride, channels, features)[::-1, :, ::-1]
    kernel = kernel.transpose(0, 2, 5, 1, 3, 4).reshape(height, width, features, -1)
    result = lax.conv_general_dilated(
        gradient,
        kernel,
        window_strides=(1, 1),
        padding=[(height - 1, height - 1), (width - 1, width - 1)],
        dimension_numbers=_LAYOUT,
    )
    images, rows, columns, _ = result.shape
    result = result.reshape(images, rows, columns, stride, stride, channels)
    result = result.transpose(0, 1, 3, 2, 4, 5)
    result = result.reshape(images, rows * stride, columns * stride, channels)
    # Without the padding, and with the last pixels if no window reached them.
    ends = [
        (-pads[axis][0], pads[axis][0] + size[axis] - result.shape[axis + 1], 0) for axis in (0, 1)
    ]
    return lax.pad(result, jnp.zeros((), result.dtype), ((0, 0, 0), *ends, (0, 0, 0)))


@jax.custom_jvp
def max_pool(x: jax.Array) -> jax.Array:
    """Return the maxima `[N, ⌈H/2⌉, ⌈W/2⌉, C]` over 3×3 windows with stride 2, padding `SAME`.

    As with `nn.max_pool`, the first of several equal maxima of a window, row by row, gets its
    gradient.
    """
    return lax.platform_dependent(x, cpu=_max_pool_in_two, default=_max_pool_at_once)


@max_pool.defjvp
def _max_pool_jvp(primals: _Single, tangents: _Single) -> _Pair:
    def tangent(operands: _Single, tangents: _Single) -> jax.Array:
        return jax.jvp(_max_pool_in_two, operands, tangents)[1]

    def cotangents(operands: _Single, cotangent: jax.Array) -> _Single:
        (result,) = jax.vjp(_max_pool_in_two, *operands)[1](cotangent)
        return (result,)

    return max_pool(*primals), linear_call(tangent, cotangents, primals, tangents)


def _max_pool_at_once(x: jax.Array) -> jax.Array:
    return nn.max_pool(x, (3, 3), strides=(2, 2), padding="SAME")


def _max_pool_in_two(x: jax.Array) -> jax.Array:
    # Columns first: of equal maxima, the one in the first row wins, whatever its column.
    return _max_of_three(_max_of_three(x, 2), 1)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _max_of_three(x: jax.Array, axis: int) -> jax.Array:
    """Return the maxima of windows of 3 along an axis, with stride 2 and padding `SAME`."""
    first, second, third = _window(x, axis)
    return jnp.maximum(jnp.maximum(first, second), third)


def _window(x: jax.Array, axis: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the first, second and third entry of every window."""
    pads = [(0, 0)] * x.ndim
    # `SAME` pads both ends of an odd length, and the far end of an even one.
    pads[axis] = (1, 1) if x.shape[axis] % 2 else (0, 1)
    padded = jnp.pad(x, pads, constant_values=-jnp.inf)
    even = lax.slice_in_dim(padded, 0, None, 2, axis)
    odd = lax.slice_in_dim(padded, 1, None, 2, axis)
    num_windows = odd.shape[axis]
    return (
        lax.slice_in_dim(even, 0, num_windows, axis=axis),
        odd,
        lax.slice_in_dim(even, 1, num_windows + 1, axis=axis),
    )


@_max_of_three.defjvp
def _max_of_three_jvp(axis: int, primals: _Single, tangents: _Single) -> _Pair:
    windows, of_windows = jax.jvp(lambda x: _window(x, axis), primals, tangents)
    first, second, third = windows
    maximum = jnp.maximum(jnp.maximum(first, second), third)
    of_first, of_second, of_third = of_windows
    of_others = jnp.where(second == maximum, of_second, of_third)
    return maximum, jnp.where(first == maximum, of_first, of_others)
