"""A dense layer with learned noise on its parameters: exploration without ε.

Fortunato et al. 2018, "Noisy Networks for Exploration" (arXiv 1706.10295).
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen.initializers import constant

from sebulba.toolkit.dense import add_bias

STREAM = "noise"
"""The flax random stream of the noise: `network.apply(params, x, rngs={STREAM: key})`."""


class NoisyDense(nn.Module):
    """A dense layer whose weights are `μ + σ·ε` with factorised noise: section 3, equations 9–11.

    Each row of the inputs gets noise of its own, where the paper draws it once for a batch. So
    environments explore independently of each other, and a batch that is split over devices has as
    many samples of the noise as before. Without a key the layer computes with μ alone.
    """

    features: int
    initial_sigma: float  # σ₀; the initial σ is σ₀ / √F

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Return `[..., features]` of `[..., F]`."""
        shapes = {"kernel": (x.shape[-1], self.features), "bias": (self.features,)}
        bound = x.shape[-1] ** -0.5

        def uniform(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
            return jax.random.uniform(key, shape, minval=-bound, maxval=bound)

        mean = {name: self.param(name, uniform, shape) for name, shape in shapes.items()}
        sigma = {
            name: self.param(f"{name}_sigma", constant(self.initial_sigma * bound), shape)
            for name, shape in shapes.items()
        }
        outputs = add_bias(x @ mean["kernel"], mean["bias"])
        if not self.has_rng(STREAM):
            return outputs
        input_key, output_key = jax.random.split(self.make_rng(STREAM))
        input_noise = _noise(input_key, x.shape)
        output_noise = _noise(output_key, outputs.shape)
        # ε_ij = f(ε_i)·f(ε_j), so the noise of a row's weights is never an array of their size.
        deviations = add_bias((x * input_noise) @ sigma["kernel"], sigma["bias"])
        return outputs + output_noise * deviations


def _noise(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Return `f(ε) = sgn(ε)·√|ε|` of standard normal ε."""
    normal = jax.random.normal(key, shape)
    return jnp.sign(normal) * jnp.sqrt(jnp.abs(normal))
