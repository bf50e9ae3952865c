"""Scalars as categorical distributions over the bins of a rescaled support.

Schrittwieser et al. 2020 (arXiv 1911.08265), appendix F: a number x is represented by h(x) of
`sebulba.toolkit.value_rescaling`, which lies between two neighbouring bins and has weight on these
two. A network predicts the logits of all bins, with a cross-entropy loss; the prediction is h⁻¹ of
the distribution's mean.
"""

import dataclasses

import jax
import jax.numpy as jnp

from sebulba.toolkit.value_rescaling import inverse_rescale, rescale


@dataclasses.dataclass(frozen=True, kw_only=True)
class TwoHot:
    """Bins that are evenly spaced in h(x), from −h(limit) to h(limit).

    Raises:
        ValueError: the limit is not positive, or there is no bin at 0.
    """

    limit: float  # numbers of a greater magnitude are clipped
    num_bins: int  # odd, so that 0 is the middle one
    epsilon: float = 1e-3  # of h

    def __post_init__(self) -> None:
        if self.limit <= 0.0:
            raise ValueError(f"expected a positive limit, got {self.limit}")
        if self.num_bins < 3 or self.num_bins % 2 == 0:
            raise ValueError(f"expected an odd number of at least 3 bins, got {self.num_bins}")

    @property
    def support(self) -> jax.Array:
        """Return the bins in h(x): `[num_bins]`."""
        return self._end * jnp.linspace(-1.0, 1.0, self.num_bins)

    @property
    def _end(self) -> jax.Array:
        return rescale(jnp.float32(self.limit), self.epsilon)

    def encode(self, x: jax.Array) -> jax.Array:
        """Return the weights `[..., num_bins]` of numbers `[...]`: of the bins beside h(x)."""
        middle = 0.5 * (self.num_bins - 1)
        share = jnp.clip(rescale(x, self.epsilon) / self._end, -1.0, 1.0)
        return neighbour_weights(middle + middle * share, self.num_bins)

    def decode(self, logits: jax.Array) -> jax.Array:
        """Return the predictions `[...]` of logits `[..., num_bins]`."""
        return inverse_rescale(jax.nn.softmax(logits) @ self.support, self.epsilon)

    def cross_entropy(self, logits: jax.Array, x: jax.Array) -> jax.Array:
        """Return `−Σ weights · log softmax(logits)`, `[...]`; no gradient flows to the targets.

        Args:
            logits: `[..., num_bins]`.
            x: `[...]`, targets.
        """
        weights = jax.lax.stop_gradient(self.encode(x))
        return -jnp.sum(weights * jax.nn.log_softmax(logits), axis=-1)


def neighbour_weights(position: jax.Array, num_bins: int) -> jax.Array:
    """Return the weights `[..., num_bins]` of bins 0, 1, 2 …, with their sum 1.

    The two bins beside a position have weights in proportion to the distance from the other one.

    Args:
        position: `[...]`, from 0 to `num_bins - 1`.
        num_bins: at least 2.
    """
    bins = jnp.arange(num_bins, dtype=jnp.float32)
    distance = jnp.abs(position[..., None] - bins[(None,) * position.ndim])
    return jnp.maximum(1.0 - distance, 0.0)
