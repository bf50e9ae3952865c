"""Dense layers and LayerNorm whose gradients are fast on a CPU."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen.initializers import lecun_normal, ones_init, zeros_init
from flax.typing import Initializer
from jax import lax
from jax.typing import DTypeLike

from sebulba.toolkit.linear import linear_call
from sebulba.toolkit.sums import mean_of_row, sum_of_rows

_Pair = tuple[jax.Array, jax.Array]
_Triple = tuple[jax.Array, jax.Array, jax.Array]


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


@jax.custom_jvp
def add_bias(x: jax.Array, bias: jax.Array) -> jax.Array:
    """Return `x + bias`, of `[..., F]` and `[F]`."""
    return x + _of_every_row(bias, x)


@add_bias.defjvp
def _add_bias_jvp(primals: _Pair, tangents: _Pair) -> _Pair:
    def of_operands(_: tuple[()], tangents: _Pair) -> jax.Array:
        return add_bias(*tangents)

    def transpose(_: tuple[()], cotangent: jax.Array) -> _Pair:
        return cotangent, sum_of_rows(cotangent)

    return add_bias(*primals), linear_call(of_operands, transpose, (), tangents)


@functools.partial(jax.custom_jvp, nondiff_argnums=(3,))
def layer_norm(x: jax.Array, scale: jax.Array, bias: jax.Array, epsilon: float) -> jax.Array:
    """Return rows of mean 0 and variance 1, times `scale`, plus `bias`.

    Args:
        x: float32 `[..., F]`.
        scale: `[F]`.
        bias: `[F]`.
        epsilon: added to the variance.
    """
    return _layer_norm(x, scale, bias, epsilon)[0]


def _layer_norm(
    x: jax.Array, scale: jax.Array, bias: jax.Array, epsilon: float
) -> tuple[jax.Array, _Triple]:
    """Return the result, and what its derivatives are made of: `normal`, `inverse`, `scale`."""
    centred = x - mean_of_row(x)
    inverse = lax.rsqrt(mean_of_row(jnp.square(centred)) + epsilon)
    normal = centred * inverse
    return normal * _of_every_row(scale, x) + _of_every_row(bias, x), (normal, inverse, scale)


@layer_norm.defjvp
def _layer_norm_jvp(
    epsilon: float, primals: _Triple, tangents: _Triple
) -> tuple[jax.Array, jax.Array]:
    result, residuals = _layer_norm(*primals, epsilon)
    return result, linear_call(_layer_norm_tangent, _layer_norm_cotangents, residuals, tangents)


def _layer_norm_tangent(residuals: _Triple, tangents: _Triple) -> jax.Array:
    normal, inverse, scale = residuals
    x, of_scale, of_bias = tangents
    of_normal = inverse * (x - mean_of_row(x) - normal * mean_of_row(x * normal))
    return (
        of_normal * _of_every_row(scale, x)
        + normal * _of_every_row(of_scale, x)
        + _of_every_row(of_bias, x)
    )


def _layer_norm_cotangents(residuals: _Triple, cotangent: jax.Array) -> _Triple:
    normal, inverse, scale = residuals
    scaled = cotangent * _of_every_row(scale, cotangent)
    of_x = inverse * (scaled - mean_of_row(scaled) - normal * mean_of_row(scaled * normal))
    return of_x, sum_of_rows(cotangent * normal), sum_of_rows(cotangent)


def _of_every_row(features: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.expand_dims(features, tuple(range(x.ndim - 1)))
