"""Distributions of returns in Q-learning: what a network's outputs mean, and the loss of a batch.

Each is a `loss(q_tm1, q_t, batch)` and `values(outputs)` for `DDQN`, whose network returns `n`
outputs for each action.
"""

import dataclasses

import jax
import jax.numpy as jnp
import optax

from sebulba.toolkit.replay import Transitions
from sebulba_agents.two_hot import neighbour_weights


@dataclasses.dataclass(frozen=True, kw_only=True)
class CategoricalReturns:
    """Logits of returns on a fixed support: C51 (Bellemare et al. 2017, arXiv 1707.06887).

    Raises:
        ValueError: the support is empty.
    """

    least: float  # the support's ends
    greatest: float
    num_atoms: int  # n

    def __post_init__(self) -> None:
        if self.least >= self.greatest:
            raise ValueError(f"expected least < greatest, got {self.least} and {self.greatest}")

    @property
    def support(self) -> jax.Array:
        """Return the returns `[n]` of the atoms."""
        return jnp.linspace(self.least, self.greatest, self.num_atoms)

    def values(self, logits: jax.Array) -> jax.Array:
        """Return expected returns `[...]` of logits `[..., n]`."""
        return jax.nn.softmax(logits) @ self.support

    def loss(
        self, q_tm1: jax.Array, q_t: jax.Array, batch: Transitions
    ) -> tuple[jax.Array, jax.Array]:
        """Return the cross entropies `[n]` to the projected targets, twice: they are priorities.

        Args:
            q_tm1: logits `[n, atoms]`; differentiated.
            q_t: logits `[n, atoms]` of the next observations' greedy actions.
            batch: transitions `[n]`.
        """
        targets = batch.reward[:, None] + batch.discount[:, None] * self.support[None]
        weights = jax.lax.stop_gradient(self.project(targets, jax.nn.softmax(q_t)))
        cross_entropy = -jnp.sum(weights * jax.nn.log_softmax(q_tm1), axis=-1)
        return cross_entropy, cross_entropy

    def project(self, returns: jax.Array, probabilities: jax.Array) -> jax.Array:
        """Return the distributions `[n, atoms]` on the support that are nearest to given ones.

        Equation 7: each return, clipped to the support, gives its probability to the two atoms
        beside it, in proportion to the distance from the other one.

        Args:
            returns: `[n, m]`, of any value.
            probabilities: `[n, m]`, of the returns.
        """
        spacing = (self.greatest - self.least) / (self.num_atoms - 1)
        positions = (jnp.clip(returns, self.least, self.greatest) - self.least) / spacing
        weights = neighbour_weights(positions, self.num_atoms)
        return jnp.einsum("nm,nma->na", probabilities, weights)


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuantileReturns:
    """Quantiles of returns: QR-DQN (Dabney et al. 2018, arXiv 1710.10044), without a support."""

    num_quantiles: int  # n

    def values(self, quantiles: jax.Array) -> jax.Array:
        """Return expected returns `[...]` of quantiles `[..., n]`."""
        return jnp.mean(quantiles, axis=-1)

    def loss(
        self, q_tm1: jax.Array, q_t: jax.Array, batch: Transitions
    ) -> tuple[jax.Array, jax.Array]:
        """Return quantile Huber losses `[n]` (equation 10, κ = 1), and TD errors `[n]` of means.

        Args:
            q_tm1: quantiles `[n, quantiles]`; differentiated.
            q_t: quantiles `[n, quantiles]` of the next observations' greedy actions.
            batch: transitions `[n]`.
        """
        targets = batch.reward[:, None] + batch.discount[:, None] * jax.lax.stop_gradient(q_t)
        errors = targets[:, None, :] - q_tm1[:, :, None]  # [n, quantile, target quantile]
        middles = (jnp.arange(self.num_quantiles, dtype=jnp.float32) + 0.5) / self.num_quantiles
        weights = jnp.abs(middles[None, :, None] - (errors < 0.0).astype(jnp.float32))
        losses = jnp.sum(jnp.mean(weights * optax.huber_loss(errors), axis=-1), axis=-1)
        return losses, jnp.mean(targets, axis=-1) - jnp.mean(q_tm1, axis=-1)
