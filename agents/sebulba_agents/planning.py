"""Search with a model, by mctx: needs the extra `search`.

A model is a pair of functions, so a learned one, a table or a simulator are searched alike. Any
policy of `mctx` can take the place of `gumbel_muzero_policy` here.
"""

import dataclasses
import functools
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import mctx

from sebulba.pytree import pytree_dataclass
from sebulba.types import PyTree

# c_scale of the paper's σ; mctx has 0.1 as well.
_VALUE_SCALE = 0.1


@pytree_dataclass
class Root:
    """What a model knows of the states that a search begins in."""

    policy: jax.Array  # [N, A] logits
    value: jax.Array  # [N]
    latent: PyTree  # [N, ...], the model's own states


@pytree_dataclass
class Step:
    """What a model predicts after an action."""

    reward: jax.Array  # [N]
    discount: jax.Array  # [N], γ, or 0 where the episode terminated
    policy: jax.Array  # [N, A] logits
    value: jax.Array  # [N]
    latent: PyTree  # [N, ...]


class Model(Protocol):
    """A model of the environment."""

    def root(self, params: PyTree, observation: PyTree) -> Root:
        """Return policy and value of observations `[N, ...]`."""
        ...

    def step(self, params: PyTree, latent: PyTree, action: jax.Array) -> Step:
        """Return what follows on actions `[N]` int32 in the model's states `[N, ...]`."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchSettings:
    """How a search is done."""

    num_simulations: int
    max_considered_actions: int  # that Sequential Halving begins with, at most
    least_range: float  # see `in_range_of_tree`


@pytree_dataclass
class Plan:
    """The result of a search."""

    action: jax.Array  # [N] int32
    policy: jax.Array  # [N, A] probabilities, the improved policy
    value: jax.Array  # [N], of the improved policy


def plan(
    model: Model,
    params: PyTree,
    key: jax.Array,
    observation: PyTree,
    *,
    settings: SearchSettings,
    action_mask: jax.Array | None,
    gumbel_scale: float,
) -> Plan:
    """Search by Gumbel MuZero: Danihelka et al. 2022 (openreview bERaNdoegnO).

    The value is the mean of the action values under the improved policy, `Σ π′(a)·Q(a)`, over
    visited actions. The mean over simulations would hold those of Sequential Halving as well, which
    tries poor actions as often as good ones.

    Args:
        model: the model of the environment.
        params: passed to the model.
        key: consumed.
        observation: `[N, ...]`.
        settings: the settings of the search.
        action_mask: `[N, A]` bool, legal actions; None: all.
        gumbel_scale: the scale of the noise in the choice of actions; 0: no noise.
    """
    # mctx and chex mix dtypes and ranks.
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        output = mctx.gumbel_muzero_policy(
            params,
            key,
            *for_mctx(model, params, observation),
            settings.num_simulations,
            invalid_actions=None if action_mask is None else ~action_mask,
            max_num_considered_actions=settings.max_considered_actions,
            gumbel_scale=gumbel_scale,
            qtransform=functools.partial(in_range_of_tree, least_range=settings.least_range),
        )
        summary = output.search_tree.summary()
        weights = jnp.where(summary.visit_counts > 0, output.action_weights, 0.0)
        total = jnp.sum(weights, axis=-1)
        value = jnp.sum(weights * summary.qvalues, axis=-1) / jnp.maximum(total, 1e-30)
    return Plan(
        action=output.action.astype(jnp.int32),
        policy=output.action_weights,
        value=value,
    )


def for_mctx(
    model: Model, params: PyTree, observation: PyTree
) -> tuple[mctx.RootFnOutput, mctx.RecurrentFn]:
    """Return the root of a search and the function of its steps, as mctx's policies take them."""
    root = model.root(params, observation)

    def recurrent(params: PyTree, key: jax.Array, action: jax.Array, latent: PyTree):
        del key
        step = model.step(params, latent, action)
        output = mctx.RecurrentFnOutput(
            reward=step.reward, discount=step.discount, prior_logits=step.policy, value=step.value
        )
        return output, step.latent

    return (
        mctx.RootFnOutput(prior_logits=root.policy, value=root.value, embedding=root.latent),
        recurrent,
    )


def in_range_of_tree(tree: Any, node_index: jax.Array, *, least_range: float) -> jax.Array:
    """Return the completed action values of a node `[A]`, scaled for the sum with its logits.

    As `mctx.qtransform_completed_by_mix_value`, but divided by the range of all action values in
    the tree (MuZero, appendix B) instead of the node's own. Two actions whose values differ by no
    more than the model's error would otherwise get the full difference.

    Args:
        tree: the tree of one search.
        node_index: `[]`.
        least_range: a smaller range counts as this one.
    """
    q = tree.children_rewards + tree.children_discounts * tree.children_values
    is_visited = tree.children_visits > 0
    infinity = jnp.array(jnp.inf, q.dtype)
    # One reduction: this runs in every node that a simulation passes, and XLA on a CPU gives two
    # reductions of a small array to two threads, which doubles the CPU time of a search.
    most, least = jax.lax.reduce(
        (jnp.where(is_visited, q, -infinity), jnp.where(is_visited, q, infinity)),
        (-infinity, infinity),
        lambda a, b: (jnp.maximum(a[0], b[0]), jnp.minimum(a[1], b[1])),
        dimensions=(0, 1),
    )
    spread = most - least  # −∞ before the first visit
    return mctx.qtransform_completed_by_mix_value(
        tree,
        node_index,
        value_scale=_VALUE_SCALE / jnp.maximum(spread, least_range),
        rescale_values=False,
    )
