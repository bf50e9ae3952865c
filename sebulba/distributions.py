"""Distributions over actions, as functions of their parameters.

A logit of −∞ is an action that is never taken; entropy and divergence stay finite, and so do their
gradients.
"""

import jax
import jax.numpy as jnp


def categorical_log_prob(logits: jax.Array, action: jax.Array) -> jax.Array:
    """Returns `[...]`: log p(action).

    Args:
        logits: `[..., A]`, need not be normalised.
        action: `[...]`, int in 0 … A − 1.
    """
    log_probs = jax.nn.log_softmax(logits)
    return jnp.take_along_axis(log_probs, action[..., None], axis=-1)[..., 0]


def categorical_entropy(logits: jax.Array) -> jax.Array:
    """Returns `[...]`: the entropy in nats.

    Args:
        logits: `[..., A]`, need not be normalised.
    """
    log_probs = jax.nn.log_softmax(logits)
    return -_expectation(log_probs, log_probs)


def categorical_kl(logits: jax.Array, other_logits: jax.Array) -> jax.Array:
    """Returns `[...]`: the Kullback-Leibler divergence of `logits` from `other_logits` in nats.

    That is E_p[log p − log q], with p of `logits` and q of `other_logits`.

    Args:
        logits: `[..., A]`, need not be normalised.
        other_logits: `[..., A]`, need not be normalised.
    """
    log_probs = jax.nn.log_softmax(logits)
    return _expectation(log_probs, log_probs - jax.nn.log_softmax(other_logits))


def categorical_sample(key: jax.Array, logits: jax.Array) -> jax.Array:
    """Returns `[...]` int32: a draw each.

    Args:
        key: consumed.
        logits: `[..., A]`, need not be normalised.
    """
    return jax.random.categorical(key, logits).astype(jnp.int32)


def categorical_mode(logits: jax.Array) -> jax.Array:
    """Returns `[...]` int32: the likeliest action, the first of several.

    Args:
        logits: `[..., A]`, need not be normalised.
    """
    return jnp.argmax(logits, axis=-1).astype(jnp.int32)


def _expectation(log_probs: jax.Array, x: jax.Array) -> jax.Array:
    """Returns Σ p·x over the actions that have a probability: elsewhere `x` may not be finite."""
    # Before the product, whose gradient would be 0·∞.
    x = jnp.where(log_probs > -jnp.inf, x, 0.0)
    return jnp.sum(jnp.exp(log_probs) * x, axis=-1)
