"""Sampling in proportion to priority, and the importance weights that correct it.

Prioritized Experience Replay (Schaul et al. 2016, arXiv 1511.05952), section 3.3: entry `i` is
drawn with probability `P(i) = p_i^α / Σ_k p_k^α` and weighs `(1 / (N · P(i)))^β`. Instead of using
a sum tree, a draw picks a group of about √N entries by the groups' sums, then an entry within the
group. There is no tree to update, and both cumulative sums are short: one over a million entries
would lose small entries to float32 rounding.
"""

import math

import jax
import jax.numpy as jnp

from sebulba.toolkit.reductions import masked_max, masked_mean


def priority_mass(priority: jax.Array, exponent: float) -> jax.Array:
    """Return `p^α`; 0 where the priority is 0, also for α = 0, so that it is never drawn.

    Args:
        priority: `[...]` float32, not negative.
        exponent: α; 0: all entries with a priority above 0 are equally likely.
    """
    return jnp.where(priority > 0.0, jnp.power(priority, exponent), 0.0)


def draw(key: jax.Array, mass: jax.Array, num_draws: int) -> tuple[jax.Array, jax.Array]:
    """Draw entries independently, with replacement, in proportion to their mass.

    Args:
        key: consumed.
        mass: `[N]` float32, not negative. An entry of mass 0 is never drawn.
        num_draws: number of draws.

    Returns:
        Indices `[num_draws]` int32 and probabilities float32; all 0 if all mass is 0.
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
    """Return the entries `[n]` int32 that `uniform` `[n]` hits in rows `[n or 1, k]` of `mass`."""
    cumulative = jnp.cumsum(mass, axis=-1)
    # XLA's parallel cumulative sum may decrease by rounding, so without `has_mass` a draw could hit
    # an entry of mass 0.
    has_mass = mass > 0.0
    total = jnp.max(cumulative, axis=-1, where=has_mass, initial=0.0)
    hit = has_mass & (cumulative > (uniform * total)[:, None])
    return jnp.argmax(hit, axis=-1).astype(jnp.int32)


def importance_weights(
    probability: jax.Array, num_entries: jax.Array, exponent: float | jax.Array
) -> jax.Array:
    """Return `(1 / (N · P))^β` `[B]`, divided by the maximum over all learner devices.

    Args:
        probability: `[B]`, of being drawn from this device's entries; 0 gets weight 0.
        num_entries: `[]`, drawable entries on this device.
        exponent: β.
    """
    drawn = probability > 0.0
    expected = jnp.where(drawn, probability, 1.0) * num_entries.astype(jnp.float32)
    weights = jnp.where(drawn, jnp.power(jnp.maximum(expected, 1e-30), -exponent), 0.0)
    return weights / jnp.maximum(masked_max(weights, drawn), 1e-30)


def sample_weights(
    probability: jax.Array, num_entries: jax.Array, exponent: float | jax.Array | None
) -> jax.Array:
    """Return the weights `[B]` of entries drawn from learner devices that hold unequal numbers.

    Each device draws as many entries, from more or fewer that can be drawn. Uniform draws have
    weights with mean 1, not maximum 1, so a loss equals that of a single shared replay.

    Args:
        probability: `[B]`, of being drawn from this device's entries; 0 gets weight 0.
        num_entries: `[]`, drawable entries on this device.
        exponent: β of `importance_weights`; None: draws are uniform.
    """
    own = num_entries.astype(jnp.float32)[None]
    count = masked_mean(own, jnp.ones_like(own, bool))
    if exponent is not None:
        return importance_weights(probability, count, exponent)
    return jnp.where(probability > 0.0, own / jnp.maximum(count, 1.0), 0.0)
