"""Distributions over actions: pytrees of their parameters, batched over any leading axes.

A policy head returns one, a trajectory stores one, and a loss evaluates it; none of them depends on
the kind of action. An action whose logit is −∞ is never taken; entropy and KL divergence, and their
gradients, stay finite.
"""

import math
from typing import Protocol, Self, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from sebulba.pytree import pytree_dataclass

_LOG_SQRT_TAU = 0.5 * math.log(2.0 * math.pi)


class Distribution(Protocol):
    """A batch `[...]` of distributions over actions."""

    def log_prob(self, action: jax.Array) -> jax.Array:
        """Return the log probability, or log density, of each action: `[...]`."""
        ...

    def entropy(self) -> jax.Array:
        """Return the entropy in nats: `[...]`."""
        ...

    def kl(self, other: Self) -> jax.Array:
        """Return KL(self, other) = E[log self − log other] under `self`, in nats: `[...]`."""
        ...

    def sample(self, key: jax.Array) -> jax.Array:
        """Return one sample per distribution; the key is consumed."""
        ...

    def mode(self) -> jax.Array:
        """Return the most likely action of each distribution."""
        ...


@pytree_dataclass
class Categorical:
    """One of the actions 0 … A − 1, as int32 `[...]`."""

    logits: jax.Array  # [..., A], need not be normalised

    def log_prob(self, action: jax.Array) -> jax.Array:
        """Return `[...]`; see `Distribution.log_prob`."""
        log_probs = jax.nn.log_softmax(self.logits)
        return entry_of(log_probs, action)

    def entropy(self) -> jax.Array:
        """Return `[...]`; see `Distribution.entropy`."""
        log_probs = jax.nn.log_softmax(self.logits)
        return -_expectation(log_probs, log_probs)

    def kl(self, other: "Categorical") -> jax.Array:
        """Return `[...]`; see `Distribution.kl`."""
        log_probs = jax.nn.log_softmax(self.logits)
        return _expectation(log_probs, log_probs - jax.nn.log_softmax(other.logits))

    def sample(self, key: jax.Array) -> jax.Array:
        """Return `[...]`; see `Distribution.sample`."""
        return jax.random.categorical(key, self.logits).astype(jnp.int32)

    def mode(self) -> jax.Array:
        """Return `[...]`; the first of several."""
        return jnp.argmax(self.logits, axis=-1).astype(jnp.int32)


@pytree_dataclass
class MultiCategorical:
    """Several independent choices: an action is int32 `[..., choices]`."""

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


def legal_logits(logits: jax.Array, action_mask: jax.Array | None) -> jax.Array:
    """Return logits, or action values, `[..., A]`: −∞ for the actions that are not legal."""
    return logits if action_mask is None else jnp.where(action_mask, logits, -jnp.inf)


D = TypeVar("D", bound=Distribution)


def legal_only(policy: D, action_mask: jax.Array | None) -> D:
    """Return the policy over the legal actions: the logits of the others are −∞.

    Their probabilities and the gradients of their logits are exactly 0, and `mode`, `sample`,
    `entropy` and `kl` ignore them.

    Args:
        policy: `[...]`, discrete.
        action_mask: `[..., A]` bool, see `EnvStep.action_mask`; None: the policy is returned as it
            is.

    Raises:
        TypeError: the policy is continuous.
    """
    if action_mask is None:
        return policy
    if isinstance(policy, Categorical):
        return type(policy)(logits=legal_logits(policy.logits, action_mask))
    if isinstance(policy, MultiCategorical):
        ends = np.cumsum([choice.logits.shape[-1] for choice in policy.choices])[:-1]
        masks = jnp.split(action_mask, ends, axis=-1)
        pairs = zip(policy.choices, masks, strict=True)
        return type(policy)(choices=tuple(legal_only(choice, mask) for choice, mask in pairs))
    raise TypeError(f"expected a discrete policy with an action mask, got {type(policy).__name__}")


def _total(terms: list[jax.Array]) -> jax.Array:
    return jnp.sum(jnp.stack(terms), axis=0)


def entry_of(rows: jax.Array, index: jax.Array) -> jax.Array:
    """Return an entry `[...]` of each row `[..., A]`; NaN where the index `[...]` is none of A.

    The gradient of a gather is a scatter, which is slow on a CPU; of this, it is a `where`.
    """
    index = index.astype(jnp.int32)  # The numbers of 8 bits repeat from 256 actions on.
    numbers = jax.lax.broadcasted_iota(jnp.int32, rows.shape, rows.ndim - 1)
    entries = jnp.sum(jnp.where(numbers == index[..., None], rows, 0.0), axis=-1)
    return jnp.where((index >= 0) & (index < rows.shape[-1]), entries, jnp.nan)


def one_hot(index: jax.Array, size: int) -> jax.Array:
    """Return float32 `[..., size]`, 1 at the index `[...]` of any integer type, 0 elsewhere.

    All 0 where the index is none of `size`. `jax.nn.one_hot` counts in the type of the index, so an
    8-bit index gets several ones from 256 entries on.
    """
    return jax.nn.one_hot(index.astype(jnp.int32), size, dtype=jnp.float32)


def _expectation(log_probs: jax.Array, x: jax.Array) -> jax.Array:
    """Return Σ p·x over actions with p > 0; `x` may be infinite elsewhere."""
    # `where` before the product, whose gradient would otherwise be 0·∞ = NaN.
    x = jnp.where(log_probs > -jnp.inf, x, 0.0)
    return jnp.sum(jnp.exp(log_probs) * x, axis=-1)
