"""Running mean and variance of a stream, the same on every learner device.

`merge` joins a batch's own moments with those so far, as Chan, Golub and LeVeque 1979, "Updating
formulae and a pairwise algorithm for computing sample variances", in terms of means instead of
sums. A batch is that of all learner devices, so nothing depends on how it is split.
"""

import jax
import jax.numpy as jnp

from sebulba.pytree import pytree_dataclass
from sebulba.toolkit.reductions import masked_feature_mean, masked_sum

_VARIANCE_EPSILON = 1e-8


@pytree_dataclass
class RunningMoments:
    """Of all arrays `[...]` that were merged in. Carries no gradient."""

    count: jax.Array  # [] float32
    mean: jax.Array  # [...]
    variance: jax.Array  # [...], of the population

    @property
    def std(self) -> jax.Array:
        """`[...]`, never 0."""
        return jnp.sqrt(self.variance + _VARIANCE_EPSILON)


def init_moments(shape: tuple[int, ...]) -> RunningMoments:
    """Return mean 0 and variance 1 of nothing: arrays stay as they are until some were merged."""
    return RunningMoments(
        count=jnp.zeros((), jnp.float32),
        mean=jnp.zeros(shape, jnp.float32),
        variance=jnp.ones(shape, jnp.float32),
    )


def merge(moments: RunningMoments, x: jax.Array, mask: jax.Array) -> RunningMoments:
    """Return the moments with the entries of all learner devices where `mask` merged in.

    Args:
        moments: of arrays `[...]`, so far.
        x: `[T, B, ...]`, float32.
        mask: `[T, B]`, bool; nowhere True leaves the moments as they are.
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
