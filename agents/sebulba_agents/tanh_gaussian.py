"""The tanh of a Gaussian: independent action components in (-1, 1).

`a = tanh(u)`, `u ~ N(mean, exp(log_std)²)` (Haarnoja et al. 2018, arXiv 1801.01290, appendix C).
The density's correction `log(1 − tanh²(u))` is computed as `2·(log 2 − u − softplus(−2u))`, which
is finite and differentiable for any `u`. Densities are functions of `u`, since an action that
rounds to ±1 cannot be inverted.
"""

import math

import jax
import jax.numpy as jnp

from sebulba.pytree import pytree_dataclass

_LOG_SQRT_TAU = 0.5 * math.log(2.0 * math.pi)


@pytree_dataclass
class TanhGaussianSample:
    """A sample and its log density."""

    action: jax.Array  # [..., A] in [-1, 1]
    log_prob: jax.Array  # [...]


def tanh_gaussian_log_prob(pre_tanh: jax.Array, mean: jax.Array, log_std: jax.Array) -> jax.Array:
    """Return the log density `[...]` of the action `tanh(pre_tanh)`.

    Args:
        pre_tanh: `[..., A]`, u.
        mean: `[..., A]`, of the Gaussian.
        log_std: `[..., A]`, of the Gaussian.
    """
    noise = (pre_tanh - mean) * jnp.exp(-log_std)
    gaussian = -0.5 * jnp.square(noise) - log_std - _LOG_SQRT_TAU
    log_slope = 2.0 * (math.log(2.0) - pre_tanh - jax.nn.softplus(-2.0 * pre_tanh))
    return jnp.sum(gaussian - log_slope, axis=-1)


def tanh_gaussian_sample(key: jax.Array, mean: jax.Array, log_std: jax.Array) -> TanhGaussianSample:
    """Sample actions, differentiable in the parameters.

    Args:
        key: consumed.
        mean: `[..., A]`, of the Gaussian.
        log_std: `[..., A]`, of the Gaussian.
    """
    noise = jax.random.normal(key, mean.shape)
    pre_tanh = mean + jnp.exp(log_std) * noise
    log_prob = tanh_gaussian_log_prob(pre_tanh, mean, log_std)
    return TanhGaussianSample(action=jnp.tanh(pre_tanh), log_prob=log_prob)
