"""Normalisation of observations and rewards by their running moments.

The moments are part of the networks: actors and checkpoints get them with the parameters, so acting
and learning normalise with the same statistics. They are not trained.

`merge` adds a batch as in Chan, Golub and LeVeque 1979, "Updating formulae and a pairwise algorithm
for computing sample variances", in terms of means instead of sums. A batch spans all learner
devices, so the result does not depend on their number.
"""

import jax
import jax.numpy as jnp

from sebulba.pytree import pytree_dataclass
from sebulba.toolkit.reductions import masked_feature_mean, masked_sum
from sebulba.toolkit.scans import scan_rows
from sebulba.types import EnvStep, PyTree

_OBSERVATION_CLIP = 10.0
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
    """Return mean 0, variance 1 and count 0, by which `normalize` only clips."""
    return RunningMoments(
        count=jnp.zeros((), jnp.float32),
        mean=jnp.zeros(shape, jnp.float32),
        variance=jnp.ones(shape, jnp.float32),
    )


def moments_of(x: jax.Array, mask: jax.Array) -> RunningMoments:
    """Return the moments of the entries of all learner devices where `mask`.

    Args:
        x: `[T, B, ...]`, float.
        mask: `[T, B]`, bool; all False: merging them changes nothing.
    """
    x = x.astype(jnp.float32)  # Sums of many float16 are infinite or rounded.
    mean = masked_feature_mean(x, mask)
    return RunningMoments(
        count=masked_sum(jnp.ones(mask.shape, jnp.float32), mask),
        mean=mean,
        variance=masked_feature_mean(jnp.square(x - mean[None, None]), mask),
    )


def merge(moments: RunningMoments, added: RunningMoments) -> RunningMoments:
    """Return the moments of arrays `[...]` and of those of a batch."""
    count = moments.count + added.count
    # Means and shares instead of sums of squares, which lose precision as the count grows.
    share = added.count / jnp.maximum(count, 1.0)
    shift = added.mean - moments.mean
    return jax.lax.stop_gradient(
        RunningMoments(
            count=count,
            mean=moments.mean + share * shift,
            variance=moments.variance
            + share * (added.variance - moments.variance)
            + share * (1.0 - share) * jnp.square(shift),
        )
    )


@pytree_dataclass
class Normalization:
    """Running moments of observations and discounted returns; None: not normalised."""

    observation: tuple[RunningMoments, ...] | None  # one per floating-point leaf
    discounted_return: RunningMoments | None  # []

    def normalize(self, observation: PyTree) -> PyTree:
        """Return standardised observations `[T, B, ...]`, clipped to ±10.

        Integer leaves, such as images and counts, are unchanged.
        """
        if self.observation is None:
            return observation
        leaves, structure = jax.tree.flatten(observation)
        moments = iter(self.observation)
        normalized = [
            _standardize(leaf, next(moments)) if _is_floating(leaf) else leaf for leaf in leaves
        ]
        return jax.tree.unflatten(structure, normalized)

    def scale(self, reward: jax.Array) -> jax.Array:
        """Return rewards of any shape, divided by the standard deviation of discounted returns."""
        if self.discounted_return is None:
            return reward
        return reward / jax.lax.stop_gradient(self.discounted_return.std)


def init_normalization(
    observation: PyTree, *, of_observations: bool, of_rewards: bool
) -> Normalization:
    """Return empty moments, by which observations are only clipped.

    Args:
        observation: `EnvironmentSpec.observation`.
        of_observations: whether observations are normalised.
        of_rewards: whether rewards are normalised.
    """
    floating = (leaf for leaf in jax.tree.leaves(observation) if _is_floating(leaf))
    return Normalization(
        observation=tuple(init_moments(leaf.shape) for leaf in floating)
        if of_observations
        else None,
        discounted_return=init_moments(()) if of_rewards else None,
    )


def normalization_of_rows(
    like: Normalization,
    env_steps: EnvStep,
    valid: jax.Array,
    returns_before: jax.Array | None,
    discount: float,
) -> Normalization:
    """Return the moments of trajectories of all learner devices, to be merged later.

    A valid transition adds the observation that it starts from and the return that it arrives at.
    No row thus counts twice, although row `T` is also row 0 of the next trajectory.

    Args:
        like: says what is normalised.
        env_steps: `[T + 1, B, ...]`, rows with raw rewards.
        valid: `[T, B]` bool, transitions to add.
        returns_before: `[B]`, the discounted return before row 0, if rewards are normalised.
        discount: γ.
    """
    observation, of_returns = like.observation, like.discounted_return
    if observation is not None:
        leaves = [leaf for leaf in jax.tree.leaves(env_steps.observation) if _is_floating(leaf)]
        observation = tuple(moments_of(leaf[:-1], valid) for leaf in leaves)
    if of_returns is not None and returns_before is not None:
        returns = discounted_returns(env_steps, returns_before, discount)
        of_returns = moments_of(returns[1:], valid)
    return Normalization(observation=observation, discounted_return=of_returns)


def merge_normalization(
    normalization: Normalization, added: Normalization, when: jax.Array
) -> Normalization:
    """Return the moments after adding those of `normalization_of_rows`, where `when` `[]`."""
    merged = jax.tree.map(
        merge, normalization, added, is_leaf=lambda x: isinstance(x, RunningMoments)
    )
    return jax.tree.map(lambda new, old: jnp.where(when, new, old), merged, normalization)


def discounted_returns(env_steps: EnvStep, before: jax.Array, discount: float) -> jax.Array:
    """Return `G_t = r_t + γ·G_{t−1}` `[R, B]`: the discounted sum of an episode's past rewards.

    Args:
        env_steps: `[R, B, ...]`, consecutive rows.
        before: `[B]`, G before row 0.
        discount: γ.
    """

    def step(total: jax.Array, row: tuple[jax.Array, jax.Array]):
        reward, is_first = row
        total = reward + discount * jnp.where(is_first, 0.0, total)
        return total, total

    return scan_rows(step, before, (env_steps.reward, env_steps.is_first))[1]


def _standardize(x: jax.Array, moments: RunningMoments) -> jax.Array:
    moments = jax.lax.stop_gradient(moments)
    # [None, None]: the project forbids implicit rank promotion over the axes [T, B].
    standard = (x - moments.mean[None, None]) / moments.std[None, None]
    return jnp.clip(standard, -_OBSERVATION_CLIP, _OBSERVATION_CLIP)


def _is_floating(leaf: jax.Array | jax.ShapeDtypeStruct) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.floating)


def clip_rewards(reward: jax.Array, limit: float | None) -> jax.Array:
    """Return rewards clipped to ± `limit`; None: no clipping."""
    return reward if limit is None else jnp.clip(reward, -limit, limit)
