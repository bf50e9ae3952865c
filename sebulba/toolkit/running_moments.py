"""Running mean and variance of a stream, the same on every learner device.

`merge` adds a batch as in Chan, Golub and LeVeque 1979, "Updating formulae and a pairwise algorithm
for computing sample variances", in terms of means instead of sums. A batch spans all learner
devices, so the result does not depend on their number.
"""

import jax
import jax.numpy as jnp

from sebulba.pytree import pytree_dataclass
from sebulba.toolkit.reductions import masked_feature_mean, masked_sum

_VARIANCE_EPSILON = 1e-8


@pytree_dataclass
class RunningMoments:
    """Moments of all arrays `[...]` merged so far, without gradients."""

    count: jax.Array  # [] float32
    mean: jax.Array  # [...]
    variance: jax.Array  # [...], of the population

    @property
    def std(self) -> jax.Array:
        """Standard deviation `[...]`, never 0."""
        return jnp.sqrt(self.variance + _VARIANCE_EPSILON)


def init_moments(shape: tuple[int, ...]) -> RunningMoments:
    """Return mean 0, variance 1 and count 0: standardising with them changes nothing."""
    return RunningMoments(
        count=jnp.zeros((), jnp.float32),
        mean=jnp.zeros(shape, jnp.float32),
        variance=jnp.ones(shape, jnp.float32),
    )


def merge(moments: RunningMoments, x: jax.Array, mask: jax.Array) -> RunningMoments:
    """Return the moments after adding the entries of all learner devices where `mask`.

    Args:
        moments: of arrays `[...]`, before the batch.
        x: `[T, B, ...]`, float32.
        mask: `[T, B]`, bool; all False leaves the moments unchanged.
    """
    added = masked_sum(jnp.ones(mask.shape, jnp.float32), mask)
    count = moments.count + added
    share = added / jnp.maximum(count, 1.0)
    mean = masked_feature_mean(x, mask)
    variance = masked_feature_mean(jnp.square(x - mean[None, None]), mask)
    shift = mean - moments.mean
    return jax.lax.stop_gradient(
        RunningMoments(
            count=count,
            mean=moments.mean + share * shift,
            variance=moments.variance
            + share * (variance - moments.variance)
            + share * (1.0 - share) * jnp.square(shift),
        )
    )
