"""ε-greedy exploration with a rate for each environment."""

import jax
import jax.numpy as jnp


def exploration_epsilons(
    *, first: int | jax.Array, count: int, total: int, base: float, exponent: float
) -> jax.Array:
    """Return per-environment exploration rates `[count]`, of environments `first`, `first + 1` …

    `ε_i = base^(1 + exponent · i / (total − 1))`: Horgan et al. 2018 (arXiv 1803.00933), section
    4.1, but i counts environments instead of actors. A single environment explores with `base`.
    """
    powers = exploration_powers(first=first, count=count, total=total, exponent=exponent)
    return jnp.power(base, powers)


def exploration_powers(
    *, first: int | jax.Array, count: int, total: int, exponent: float
) -> jax.Array:
    """Return the powers `[count]` of `exploration_epsilons`: `1 + exponent · i / (total − 1)`."""
    fraction = (first + jnp.arange(count)).astype(jnp.float32) / max(total - 1, 1)
    return 1.0 + exponent * fraction


def epsilon_greedy(key: jax.Array, q: jax.Array, epsilon: jax.Array) -> jax.Array:
    """Return actions `[B]` int32: the one with the greatest Q, or a random one with probability ε.

    Args:
        key: consumed.
        q: `[B, A]`.
        epsilon: `[B]`.
    """
    explore_key, action_key = jax.random.split(key)
    greatest = jnp.argmax(q, axis=-1).astype(jnp.int32)
    random = jax.random.randint(action_key, greatest.shape, 0, q.shape[-1], dtype=jnp.int32)
    return jnp.where(jax.random.uniform(explore_key, greatest.shape) < epsilon, random, greatest)
