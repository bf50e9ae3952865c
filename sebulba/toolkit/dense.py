"""Dense layers and LayerNorm whose gradients are fast on a CPU.

`jax.jvp` raises a TypeError: their derivatives are in reverse mode only.
"""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen.initializers import lecun_normal, ones_init, zeros_init
from flax.typing import Initializer
from jax import lax
from jax.typing import DTypeLike

from sebulba.toolkit.sums import mean_of_row, sum_of_rows


class Dense(nn.Module):
    """A dense layer with bias, with the parameters, names and values of `nn.Dense`."""

    features: int
    kernel_init: Initializer = lecun_normal()
    dtype: DTypeLike | None = None  # of the computation; None: of the inputs and parameters

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Return `[..., features]` of `[..., F]`."""
        kernel = self.param("kernel", self.kernel_init, (x.shape[-1], self.features))
        bias = self.param("bias", zeros_init(), (self.features,))
        x, kernel, bias = nn.dtypes.promote_dtype(x, kernel, bias, dtype=self.dtype)
        return add_bias(x @ kernel, bias)


class LayerNorm(nn.Module):
    """LayerNorm over the last axis, with the parameters, names and values of `nn.LayerNorm`.

    Ba et al. 2016 (arXiv 1607.06450), section 3.1. Means and variances are float32.
    """

    epsilon: float = 1e-6
    dtype: DTypeLike | None = None  # of the result; None: of the inputs and parameters

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Return `[..., F]`."""
        scale = self.param("scale", ones_init(), x.shape[-1:])
        bias = self.param("bias", zeros_init(), x.shape[-1:])
        dtype = jnp.result_type(x, scale, bias) if self.dtype is None else self.dtype
        return layer_norm(x.astype(jnp.float32), scale, bias, self.epsilon).astype(dtype)


@jax.custom_vjp
def add_bias(x: jax.Array, bias: jax.Array) -> jax.Array:
    """Return `x + bias`, of `[..., F]` and `[F]`."""
    return x + jnp.expand_dims(bias, tuple(range(x.ndim - 1)))


def _add_bias_forward(x: jax.Array, bias: jax.Array) -> tuple[jax.Array, None]:
    return add_bias(x, bias), None


def _add_bias_backward(_: None, gradient: jax.Array) -> tuple[jax.Array, jax.Array]:
    return gradient, sum_of_rows(gradient)


add_bias.defvjp(_add_bias_forward, _add_bias_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def layer_norm(x: jax.Array, scale: jax.Array, bias: jax.Array, epsilon: float) -> jax.Array:
    """Return rows of mean 0 and variance 1, times `scale`, plus `bias`.

    Args:
        x: float32 `[..., F]`.
        scale: `[F]`.
        bias: `[F]`.
        epsilon: added to the variance, so that rows of equal numbers become `bias`.
    """
    return _layer_norm_forward(x, scale, bias, epsilon)[0]


_Residuals = tuple[jax.Array, jax.Array, jax.Array]


def _layer_norm_forward(
    x: jax.Array, scale: jax.Array, bias: jax.Array, epsilon: float
) -> tuple[jax.Array, _Residuals]:
    axes = tuple(range(x.ndim - 1))
    centred = x - mean_of_row(x)
    inverse = lax.rsqrt(mean_of_row(jnp.square(centred)) + epsilon)
    normal = centred * inverse
    result = normal * jnp.expand_dims(scale, axes) + jnp.expand_dims(bias, axes)
    return result, (normal, inverse, scale)


def _layer_norm_backward(
    epsilon: float, residuals: _Residuals, gradient: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    del epsilon
    normal, inverse, scale = residuals
    scaled = gradient * jnp.expand_dims(scale, tuple(range(gradient.ndim - 1)))
    of_x = inverse * (scaled - mean_of_row(scaled) - normal * mean_of_row(scaled * normal))
    return of_x, sum_of_rows(gradient * normal), sum_of_rows(gradient)


layer_norm.defvjp(_layer_norm_forward, _layer_norm_backward)
