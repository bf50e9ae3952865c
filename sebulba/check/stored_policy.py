"""Policies and log-probabilities that acting stored with its actions, and others in their place.

Other numbers need not be another policy: a constant added to all logits leaves every probability as
it is. So a change is stated as the change of the log-probability of the action taken.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sebulba.check.policy import is_distribution, is_log_prob, policies_of
from sebulba.check.recording import RecordedTrajectory
from sebulba.toolkit.distributions import Categorical, DiagonalGaussian, MultiCategorical
from sebulba.types import Array

SHIFT_NATS = 0.5
"""Of log-probabilities: e^0.5 = 1.65, beyond the usual bounds of ratios, 0.8 and 1.2."""
MAX_PROBABILITY = 0.59
"""Of an action that may be e^0.5 times as likely: its probability then stays below 0.98."""
# Of an action whose alternatives have a probability that float32 can tell from 0.
_MAX_PROBABILITY_BESIDE_OTHERS = 0.999
_KNOWN = (Categorical, MultiCategorical, DiagonalGaussian)


def stored_policies(item: RecordedTrajectory) -> dict[tuple, Any]:
    """Return the policies that `shifted` knows, and log-probabilities, in the extras, by path."""
    extras, shape = item.trajectory.extras, item.trajectory.valid.shape
    policies = policies_of(extras, item.trajectory.action, item.action_space)
    nodes = jax.tree_util.tree_leaves_with_path(extras, is_leaf=is_distribution)
    return {
        path: node
        for path, node in nodes
        if isinstance(policies.get(path), _KNOWN) or is_log_prob(path, node, shape)
    }


def stored_log_probs(item: RecordedTrajectory) -> list[np.ndarray]:
    """Return the log-probabilities `[T, B]` of the actions taken, of each policy in the extras."""
    action = jnp.asarray(item.trajectory.action)
    return [
        np.asarray(node.log_prob(action) if is_distribution(node) else node)
        for node in stored_policies(item).values()
    ]


def greatest_probability(item: RecordedTrajectory) -> np.ndarray:
    """Return the probability of each action `[T, B]`, or the greatest one of its choices.

    It is 0 of continuous actions, which may have any density, and of log-probabilities alone.
    """
    action, greatest = np.asarray(item.trajectory.action), np.zeros(item.trajectory.valid.shape)
    for node in stored_policies(item).values():
        pairs = [(node, action)]
        if isinstance(node, MultiCategorical):
            pairs = list(zip(node.choices, np.moveaxis(action, -1, 0), strict=True))
        for policy, taken in pairs:
            if isinstance(policy, Categorical):
                probability = np.exp(policy.log_prob(jnp.asarray(taken)))
                greatest = np.maximum(greatest, np.asarray(probability))
    return greatest


def with_likelier(item: RecordedTrajectory, shift: np.ndarray) -> RecordedTrajectory:
    """Return the trajectory with numbers `[T, B]` added to the stored log-probabilities.

    The log-probabilities are those of the actions taken; other actions share what is left as
    before. An action without an alternative keeps its probability.
    """
    stored, trajectory = stored_policies(item), item.trajectory
    extras = jax.tree_util.tree_map_with_path(
        lambda path, node: shifted(node, trajectory.action, shift) if path in stored else node,
        trajectory.extras,
        is_leaf=is_distribution,
    )
    return item.with_trajectory(extras=extras)


def with_other_policies(item: RecordedTrajectory, mask: np.ndarray) -> RecordedTrajectory:
    """Return the trajectory with stored actions likelier, or rarer if they are, in some rows.

    Args:
        item: the trajectory, whose extras may have policies.
        mask: `[T, B]`, the rows.
    """
    is_likely = greatest_probability(item) > MAX_PROBABILITY
    shift = np.where(is_likely, np.float32(-SHIFT_NATS), np.float32(SHIFT_NATS))
    return with_likelier(item, np.where(mask, shift, np.float32(0.0)))


def shifted(node: Any, action: Array, shift: np.ndarray) -> Any:
    """Return a policy, or log-probabilities, that differ by `shift` `[T, B]` for these actions."""
    if isinstance(node, MultiCategorical):
        pairs = zip(node.choices, np.moveaxis(action, -1, 0), strict=True)
        share = shift / np.float32(len(node.choices))
        return MultiCategorical(choices=tuple(shifted(*pair, share) for pair in pairs))
    if isinstance(node, DiagonalGaussian):
        noise = (action - node.mean) * np.exp(-node.log_std)
        log_std = node.log_std - shift[..., None] / np.float32(action.shape[-1])
        return DiagonalGaussian(mean=action - noise * np.exp(log_std), log_std=log_std)
    if isinstance(node, Categorical):
        log_probs = np.asarray(jax.nn.log_softmax(node.logits))
        is_taken = np.arange(log_probs.shape[-1]) == action[..., None]
        taken = np.asarray(node.log_prob(jnp.asarray(action)))
        has_others = np.exp(taken) <= _MAX_PROBABILITY_BESIDE_OTHERS
        shift = np.where(has_others, shift, np.float32(0.0))
        # The other actions share what is left, as before.
        taken = np.where(shift != 0.0, taken, np.float32(-1.0))
        others = np.log1p(-np.exp(taken + shift)) - np.log1p(-np.exp(taken))
        change = np.where(is_taken, shift[..., None], others[..., None])
        return Categorical(logits=jnp.asarray(log_probs + change))
    return node + shift
