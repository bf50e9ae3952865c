"""Sampling in proportion to priority, and the importance weights that correct it.

Prioritized Experience Replay (Schaul et al. 2016, arXiv 1511.05952), section 3.3: entry `i` is
drawn with probability `P(i) = p_i^α / Σ_k p_k^α` and weighs `(1 / (N · P(i)))^β`. The sum tree of
the paper's appendix B.2.1 is computed for each batch of draws, with 16 children per node. So there
is no tree to update, and no cumulative sum is long: one over a million entries would lose small
entries to float32 rounding.
"""

import jax
import jax.numpy as jnp

from sebulba.toolkit.reductions import masked_max, masked_mean

# Of a node of the sum tree. On a CPU, 256 draws from 100,000 entries took 0.28 ms with 16, 0.43 ms
# with 32 and 0.60 ms with 64.
_NUM_CHILDREN = 16
MIN_PRIORITY = 1e-6
"""Added to priorities, so that an entry with an error of 0 can still be drawn."""


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
    tree = _sum_tree(mass)
    uniforms = jax.random.uniform(key, (len(tree), num_draws))
    index = jnp.zeros(num_draws, jnp.int32)
    for nodes, uniform in zip(reversed(tree), uniforms, strict=True):
        index = index * _NUM_CHILDREN + _pick(nodes[index], uniform)
    total = jnp.sum(tree[-1])
    return index, jnp.where(total > 0.0, mass[index] / jnp.where(total > 0.0, total, 1.0), 0.0)


def _sum_tree(mass: jax.Array) -> list[jax.Array]:
    """Return levels `[nodes, children]`, from the entries to a single node, padded with 0."""
    tree: list[jax.Array] = []
    while not tree or len(tree[-1]) > 1:
        below = mass if not tree else jnp.sum(tree[-1], axis=1)
        padding = -len(below) % _NUM_CHILDREN
        tree.append(jnp.pad(below, (0, padding)).reshape(-1, _NUM_CHILDREN))
    return tree


def _pick(mass: jax.Array, uniform: jax.Array) -> jax.Array:
    """Return the entries `[n]` int32 that `uniform` `[n]` hits in the rows of `mass` `[n, k]`."""
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
    """Return the weights `(1 / (N · P))^β` `[B]`; with β = 1, a draw's expected weight is 1.

    `N` is the mean over the learner devices: each draws as many entries, from more or fewer.

    Args:
        probability: `[B]`, of being drawn from this device's entries; 0 gets weight 0.
        num_entries: `[]`, drawable entries on this device.
        exponent: β.
    """
    drawn = probability > 0.0
    count = _mean_over_devices(num_entries.astype(jnp.float32))
    expected = jnp.where(drawn, probability, 1.0) * count
    return jnp.where(drawn, jnp.power(jnp.maximum(expected, 1e-30), -exponent), 0.0)


def over_maximum(weights: jax.Array) -> jax.Array:
    """Divide weights `[B]` by their maximum over all learner devices (Schaul et al., section 3.4).

    A batch with a rarely drawn entry then counts less than others, by any factor if β is 1.
    """
    return weights / jnp.maximum(masked_max(weights, weights > 0.0), 1e-30)


def uniform_weights(probability: jax.Array, num_entries: jax.Array) -> jax.Array:
    """Return the weights `[B]` of uniform draws, whose mean over the learner devices is 1.

    They differ from 1 where devices hold unequal numbers, so a loss equals that of a single shared
    replay.

    Args:
        probability: `[B]`; 0 gets weight 0.
        num_entries: `[]`, drawable entries on this device.
    """
    own = num_entries.astype(jnp.float32)
    return jnp.where(probability > 0.0, own / jnp.maximum(_mean_over_devices(own), 1.0), 0.0)


def _mean_over_devices(x: jax.Array) -> jax.Array:
    return masked_mean(x[None], jnp.ones(1, bool))
