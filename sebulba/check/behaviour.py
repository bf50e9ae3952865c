"""Checks that the loss corrects stale data with the behaviour policy stored in the extras."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sebulba.agent import AgentSettings, declared
from sebulba.check import perturbation
from sebulba.check.evidence import Evidence
from sebulba.check.perturbation import Perturbation
from sebulba.check.recording import RecordedTrajectory, first_learning_cycle
from sebulba.check.result import Answer, failed, passed, skipped, unclear
from sebulba.check.sensitivity import MAX_ROUNDING
from sebulba.check.subject import Subject
from sebulba.toolkit.distributions import Categorical, DiagonalGaussian, MultiCategorical
from sebulba.types import EnvStep

_SHIFT_OF_PARAMETERS = np.float32(0.37)
_MIN_EFFECT_OF_MODES = 1e-3  # far above rounding, where that of the actions taken is rounding


def correction(evidence: Evidence) -> Answer:
    """Change the stored policy, then only what it says of the actions taken, or of its modes."""
    subject, sensitivity = evidence.subject, evidence.loss
    items = sensitivity.items
    if not jax.tree.leaves(items[0].trajectory.extras):
        return skipped("act returns no extras")
    place = f"{items[-1].place}, rows 0 … {len(items[-1].trajectory.action) - 1}"
    is_known = sensitivity.is_on_policy and _has_policy(items[0])
    if is_known:
        others = [_with_policies(item, _all_changed) for item in items]
    else:
        others = Perturbation(
            field="extras",
            rows=_every_other_valid,
            action_space=subject.run_spec.environment.action_space,
        ).apply(items)
    if sensitivity.greatest_effect(others) <= MAX_ROUNDING:
        if not sensitivity.is_on_policy:
            return skipped("the loss of the replay does not use the extras")
        if not _is_stale(subject):
            return skipped("the data are never stale, and the loss uses no correction")
        return failed(
            f"trajectory.extras ({place}): expected the loss to use the extras in valid rows, since"
            " trajectories may be older than the parameters; changing the stored policy changed"
            " neither the loss nor its gradients"
        )
    if not is_known:
        return passed("the loss uses the extras in valid rows")
    of_actions, of_modes = (
        sensitivity.greatest_effect([_with_policies(item, change) for item in items])
        for change in (_actions_changed, _modes_changed)
    )
    if of_actions > MAX_ROUNDING:
        return passed("the loss uses the log-probabilities of the actions taken")
    # A policy that is certain has no gradient, whatever the log-probabilities are.
    if of_modes < _MIN_EFFECT_OF_MODES:
        return unclear(
            "other log-probabilities of actions taken, or of modes, where these are not the actions"
            f" taken, change the gradients by {of_actions:.1g} and {of_modes:.1g} only"
        )
    return failed(
        f"trajectory.extras ({place}): expected the loss to use the log-probabilities of the"
        " actions taken; changing them, but not those of the modes, changed nothing, and changing"
        f" those of the modes alone changed the gradients by {of_modes:.1g}",
        "the behaviour policy's log-probability is that of its mode",
    )


def _every_other_valid(env_steps: EnvStep) -> np.ndarray:
    """Select half of the valid rows: in all of them, weights divided by their mean would cancel."""
    is_even = np.arange(env_steps.reward.size).reshape(env_steps.reward.shape) % 2 == 0
    return perturbation.is_valid(env_steps) & is_even


def _is_stale(subject: Subject) -> bool:
    """Whether the parameters may differ from those that acted."""
    first = first_learning_cycle(subject) or 0
    lag = subject.config.policy_lag
    # The config was validated: an agent that declares no correction was allowed this lag.
    corrects = declared(subject.config.agent, AgentSettings, "corrects_for_policy_lag")
    return (lag != 0 and corrects) or subject.agent.num_updates_per_cycle(first) > 1


_Change = Callable[[Any, np.ndarray], Any]
"""Returns a policy with other log-probabilities, given the actions taken."""


def _is_policy(node: Any) -> bool:
    """Whether the log-probabilities of some of a policy's actions can be changed alone."""
    if isinstance(node, MultiCategorical):
        return any(map(_is_policy, node.choices))
    return isinstance(node, DiagonalGaussian) or (
        isinstance(node, Categorical) and node.logits.shape[-1] > 2
    )


def _has_policy(item: RecordedTrajectory) -> bool:
    return any(map(_is_policy, jax.tree.leaves(item.trajectory.extras, is_leaf=_is_policy)))


def _with_policies(item: RecordedTrajectory, change: _Change) -> RecordedTrajectory:
    """Return the trajectory with other policies in its extras."""
    action = item.trajectory.action

    def changed(node: Any) -> Any:
        if not _is_policy(node):
            return node
        if isinstance(node, MultiCategorical):
            pairs = zip(node.choices, np.moveaxis(action, -1, 0), strict=True)
            return MultiCategorical(choices=tuple(change(*pair) for pair in pairs))
        return change(node, action)

    extras = jax.tree.map(changed, item.trajectory.extras, is_leaf=_is_policy)
    return dataclasses.replace(item, trajectory=dataclasses.replace(item.trajectory, extras=extras))


def _all_changed(policy: Any, action: np.ndarray) -> Any:
    """Change the log-probabilities of all actions."""
    del action
    if isinstance(policy, DiagonalGaussian):
        return jax.tree.map(lambda leaf: leaf + _SHIFT_OF_PARAMETERS, policy)
    is_legal = jnp.isfinite(policy.logits)  # see `distributions.legal_only`
    return Categorical(logits=jnp.where(is_legal, -3.0 * policy.logits, policy.logits))


def _actions_changed(policy: Any, action: np.ndarray) -> Any:
    """Change the log-probabilities of the actions taken, and not those of the modes."""
    if isinstance(policy, DiagonalGaussian):
        return dataclasses.replace(policy, mean=policy.mean + _SHIFT_OF_PARAMETERS)
    logits = np.array(policy.logits)
    _, taken, other = _modes_taken_and_others(policy, action)
    logits[taken], logits[other] = logits[other], logits[taken]
    return Categorical(logits=jnp.asarray(logits))


def _modes_changed(policy: Any, action: np.ndarray) -> Any:
    """Change the log-probabilities of the modes, and not those of the actions taken."""
    if isinstance(policy, DiagonalGaussian):
        # A narrower policy, whose mean is further away from the action.
        noise = (action - policy.mean) * np.exp(-policy.log_std)
        further = np.copysign(np.sqrt(np.square(noise) + 2.0 * _SHIFT_OF_PARAMETERS), noise)
        log_std = policy.log_std - _SHIFT_OF_PARAMETERS
        return DiagonalGaussian(mean=action - further * np.exp(log_std), log_std=log_std)
    logits = np.array(policy.logits)
    mode, _, other = _modes_taken_and_others(policy, action)
    both = np.logaddexp(logits[mode], logits[other])  # of which the mode gets another share
    share = np.where(logits[mode] - both < np.log(0.75), 0.95, 0.5)
    logits[mode], logits[other] = both + np.log(share), both + np.log(1.0 - share)
    return Categorical(logits=jnp.asarray(logits))


def _modes_taken_and_others(policy: Categorical, action: np.ndarray) -> tuple[tuple, ...]:
    """Return the indices of modes, of actions taken, and of third, legal ones, in the logits.

    Rows without three such actions have none.
    """
    logits = np.asarray(policy.logits)
    mode = logits.argmax(axis=-1)
    if action.shape != mode.shape:
        action = mode
    actions = np.arange(logits.shape[-1])
    is_other = np.isfinite(logits) & (actions != mode[..., None]) & (actions != action[..., None])
    rows = np.nonzero((action != mode) & is_other.any(axis=-1))
    return tuple((*rows, each[rows]) for each in (mode, action, is_other.argmax(axis=-1)))
