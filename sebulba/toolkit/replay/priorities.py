"""Drawing in proportion to priority, and the weights that undo the bias.

Prioritized Experience Replay (Schaul et al. 2016, arXiv 1511.05952), section 3.3: entry `i` is
drawn with probability `P(i) = p_i^α / Σ_k p_k^α` and weighs `(1 / (N · P(i)))^β`. Instead of a
sum tree, a draw picks a group of about √N entries by the groups' sums, then an entry within the
group: nothing has to be kept up to date, and neither of the two cumulative sums is long enough for
float32 to blur its entries, as one over a million entries would.
"""

import math

import jax
import jax.numpy as jnp

from sebulba.toolkit.reductions import masked_max


def priority_mass(priority: jax.Array, exponent: float) -> jax.Array:
    """Return `p^α`, and 0 where the priority is 0: such an entry is never drawn, even for α = 0.

    Args:
        priority: `[...]` float32, not negative.
        exponent: α; 0: every entry with a priority is equally likely.
    """
    return jnp.where(priority > 0.0, jnp.power(priority, exponent), 0.0)


def draw(key: jax.Array, mass: jax.Array, num_draws: int) -> tuple[jax.Array, jax.Array]:
    """Draw entries independently, with replacement, in proportion to their mass.

    Args:
        key: consumed.
        mass: `[N]` float32, not negative. An entry of mass 0 is never drawn.
        num_draws: how many.

    Returns:
        `[num_draws]` int32 indices and float32 probabilities. If all mass is 0 there is nothing to
        draw: the indices are 0 and so are the probabilities.
    """
    size = mass.shape[0]
    group_size = math.isqrt(size - 1) + 1
    num_groups = -(-size // group_size)
    groups = jnp.pad(mass, (0, num_groups * group_size - size)).reshape(num_groups, group_size)
    group_mass = jnp.sum(groups, axis=1)
    group_key, entry_key = jax.random.split(key)
    group = _pick(group_mass[None], jax.random.uniform(group_key, (num_draws,)))
    entry = _pick(groups[group], jax.random.uniform(entry_key, (num_draws,)))
    index = jnp.minimum(group * group_size + entry, size - 1)
    total = jnp.sum(group_mass)
    return index, jnp.where(total > 0.0, mass[index] / jnp.where(total > 0.0, total, 1.0), 0.0)


def _pick(mass: jax.Array, uniform: jax.Array) -> jax.Array:
    """Return `[n]` int32: the entry of each row `[n or 1, k]` of `mass` that `uniform` hits."""
    cumulative = jnp.cumsum(mass, axis=-1)
    # A parallel cumulative sum need not be monotone to the last bit, so an entry without mass could
    # be hit by rounding alone.
    has_mass = mass > 0.0
    total = jnp.max(cumulative, axis=-1, where=has_mass, initial=0.0)
    hit = has_mass & (cumulative > (uniform * total)[:, None])
    return jnp.argmax(hit, axis=-1).astype(jnp.int32)


def importance_weights(
    probability: jax.Array, num_entries: jax.Array, exponent: float
) -> jax.Array:
    """Return `[B]`: `(1 / (N · P))^β`, divided by the greatest of all learner devices.

    Args:
        probability: `[B]`, of being drawn from this device's entries; 0 (nothing to draw) weighs 0.
        num_entries: `[]`, entries that can be drawn on this device.
        exponent: β.
    """
    drawn = probability > 0.0
    expected = jnp.where(drawn, probability, 1.0) * num_entries.astype(jnp.float32)
    weights = jnp.where(drawn, jnp.power(jnp.maximum(expected, 1e-30), -exponent), 0.0)
    return weights / jnp.maximum(masked_max(weights, drawn), 1e-30)
