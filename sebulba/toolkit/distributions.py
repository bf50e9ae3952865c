"""Distributions over actions: pytrees of their parameters, batched over any leading axes.

A network's head gives one, a trajectory stores one, and a loss asks it for densities; none of them
knows what kind of action it is. A logit of −∞ is an action that is never taken; entropy and
divergence stay finite, and so do their gradients.
"""

import math
from typing import Protocol, Self

import jax
import jax.numpy as jnp

from sebulba.pytree import pytree_dataclass

_LOG_SQRT_TAU = 0.5 * math.log(2.0 * math.pi)


class Distribution(Protocol):
    """A batch `[...]` of distributions over actions."""

    def log_prob(self, action: jax.Array) -> jax.Array:
        """Return `[...]`: the log probability, or log density, of an action each."""
        ...

    def entropy(self) -> jax.Array:
        """Return `[...]`, in nats."""
        ...

    def kl(self, other: Self) -> jax.Array:
        """Return `[...]`: the divergence E[log self − log other] under `self`, in nats."""
        ...

    def sample(self, key: jax.Array) -> jax.Array:
        """Return a draw each; the key is consumed."""
        ...

    def mode(self) -> jax.Array:
        """Return the likeliest action each."""
        ...


@pytree_dataclass
class Categorical:
    """One of the actions 0 … A − 1, as int32 `[...]`."""

    logits: jax.Array  # [..., A], need not be normalised

    def log_prob(self, action: jax.Array) -> jax.Array:
        """Return `[...]`; see `Distribution.log_prob`."""
        return categorical_log_prob(self.logits, action)

    def entropy(self) -> jax.Array:
        """Return `[...]`; see `Distribution.entropy`."""
        return categorical_entropy(self.logits)

    def kl(self, other: "Categorical") -> jax.Array:
        """Return `[...]`; see `Distribution.kl`."""
        return categorical_kl(self.logits, other.logits)

    def sample(self, key: jax.Array) -> jax.Array:
        """Return `[...]`; see `Distribution.sample`."""
        return categorical_sample(key, self.logits)

    def mode(self) -> jax.Array:
        """Return `[...]`; the first of several."""
        return categorical_mode(self.logits)


@pytree_dataclass
class MultiCategorical:
    """Several independent choices at once: an action is int32 `[..., choices]`."""

    choices: tuple[Categorical, ...]

    def log_prob(self, action: jax.Array) -> jax.Array:
        """Return `[...]`: the sum over the choices."""
        return _total([choice.log_prob(action[..., i]) for i, choice in enumerate(self.choices)])

    def entropy(self) -> jax.Array:
        """Return `[...]`: the sum over the choices."""
        return _total([choice.entropy() for choice in self.choices])

    def kl(self, other: "MultiCategorical") -> jax.Array:
        """Return `[...]`: the sum over the choices."""
        pairs = zip(self.choices, other.choices, strict=True)
        return _total([mine.kl(theirs) for mine, theirs in pairs])

    def sample(self, key: jax.Array) -> jax.Array:
        """Return `[..., choices]`; see `Distribution.sample`."""
        keys = jax.random.split(key, len(self.choices))
        draws = [choice.sample(key) for choice, key in zip(self.choices, keys, strict=True)]
        return jnp.stack(draws, axis=-1)

    def mode(self) -> jax.Array:
        """Return `[..., choices]`; see `Distribution.mode`."""
        return jnp.stack([choice.mode() for choice in self.choices], axis=-1)


@pytree_dataclass
class DiagonalGaussian:
    """Independent normal components: an action is float32 `[..., A]`."""

    mean: jax.Array  # [..., A]
    log_std: jax.Array  # [..., A]

    def log_prob(self, action: jax.Array) -> jax.Array:
        """Return `[...]`: the sum over the components."""
        noise = (action - self.mean) * jnp.exp(-self.log_std)
        return jnp.sum(-0.5 * jnp.square(noise) - self.log_std - _LOG_SQRT_TAU, axis=-1)

    def entropy(self) -> jax.Array:
        """Return `[...]`: the sum over the components."""
        return jnp.sum(self.log_std + 0.5 + _LOG_SQRT_TAU, axis=-1)

    def kl(self, other: "DiagonalGaussian") -> jax.Array:
        """Return `[...]`: the sum over the components."""
        log_ratio = self.log_std - other.log_std
        distance = (self.mean - other.mean) * jnp.exp(-other.log_std)
        return jnp.sum(
            0.5 * (jnp.exp(2.0 * log_ratio) + jnp.square(distance) - 1.0) - log_ratio, axis=-1
        )

    def sample(self, key: jax.Array) -> jax.Array:
        """Return `[..., A]`; see `Distribution.sample`."""
        return self.mean + jnp.exp(self.log_std) * jax.random.normal(key, self.mean.shape)

    def mode(self) -> jax.Array:
        """Return `[..., A]`: the mean."""
        return self.mean


def categorical_log_prob(logits: jax.Array, action: jax.Array) -> jax.Array:
    """Return `[...]`: log p(action).

    Args:
        logits: `[..., A]`, need not be normalised.
        action: `[...]`, int in 0 … A − 1.
    """
    log_probs = jax.nn.log_softmax(logits)
    return jnp.take_along_axis(log_probs, action[..., None], axis=-1)[..., 0]


def categorical_entropy(logits: jax.Array) -> jax.Array:
    """Return `[...]`: the entropy in nats.

    Args:
        logits: `[..., A]`, need not be normalised.
    """
    log_probs = jax.nn.log_softmax(logits)
    return -_expectation(log_probs, log_probs)


def categorical_kl(logits: jax.Array, other_logits: jax.Array) -> jax.Array:
    """Return `[...]`: the Kullback-Leibler divergence of `logits` from `other_logits` in nats.

    That is E_p[log p − log q], with p of `logits` and q of `other_logits`.

    Args:
        logits: `[..., A]`, need not be normalised.
        other_logits: `[..., A]`, need not be normalised.
    """
    log_probs = jax.nn.log_softmax(logits)
    return _expectation(log_probs, log_probs - jax.nn.log_softmax(other_logits))


def categorical_sample(key: jax.Array, logits: jax.Array) -> jax.Array:
    """Return `[...]` int32: a draw each.

    Args:
        key: consumed.
        logits: `[..., A]`, need not be normalised.
    """
    return jax.random.categorical(key, logits).astype(jnp.int32)


def categorical_mode(logits: jax.Array) -> jax.Array:
    """Return `[...]` int32: the likeliest action, the first of several.

    Args:
        logits: `[..., A]`, need not be normalised.
    """
    return jnp.argmax(logits, axis=-1).astype(jnp.int32)


def _total(terms: list[jax.Array]) -> jax.Array:
    return jnp.sum(jnp.stack(terms), axis=0)


def _expectation(log_probs: jax.Array, x: jax.Array) -> jax.Array:
    """Return Σ p·x over the actions that have a probability: elsewhere `x` may not be finite."""
    # Before the product, whose gradient would be 0·∞.
    x = jnp.where(log_probs > -jnp.inf, x, 0.0)
    return jnp.sum(jnp.exp(log_probs) * x, axis=-1)
