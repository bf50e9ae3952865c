"""Checks that the loss corrects stale data with the behaviour policy stored in the extras."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sebulba.agent import AgentSettings, declared
from sebulba.check import perturbation
from sebulba.check.evidence import Evidence
from sebulba.check.perturbation import Perturbation
from sebulba.check.policy import is_distribution
from sebulba.check.question import Needs, Question
from sebulba.check.recording import RecordedTrajectory
from sebulba.check.result import Answer, failed, passed, skipped, unclear
from sebulba.check.stored_policy import stored_log_probs, stored_policies, with_other_policies
from sebulba.check.subject import Subject
from sebulba.toolkit.distributions import Categorical, DiagonalGaussian, MultiCategorical
from sebulba.types import EnvStep

_SHIFT_OF_PARAMETERS = np.float32(0.37)
_MIN_EFFECT_OF_MODES = 1e-3  # far above rounding, where that of the actions taken is rounding
_MIN_CHANGE_NATS = 0.25  # of the log-probability of an action taken: by more than a quarter
_MIN_ACTIONS = 4  # of which it changes: a single one may have an advantage near 0
# Probabilities of mode, action taken and all others together, where there are three. The mode keeps
# its place. The first two differ in the action taken, beside the others, and the first and the last
# in the mode. So likely an action has an importance weight below 1, where no bound hides a change.
_BASE, _OTHER_ACTION, _OTHER_MODE = (0.52, 0.4, 0.08), (0.52, 0.2, 0.28), (0.59, 0.4, 0.01)


def correction(evidence: Evidence) -> Answer:
    """Change the stored policy, then only what it says of the actions taken, or of its modes."""
    subject, sensitivity = evidence.subject, evidence.loss
    items = sensitivity.items
    if not jax.tree.leaves(items[0].trajectory.extras):
        return skipped("act returns no extras")
    place = f"{items[-1].place}, rows 0 … {len(items[-1].trajectory.action) - 1}"
    is_known = sensitivity.is_on_policy and bool(stored_policies(items[0]))
    if is_known:
        others = [_with_other_policies(item) for item in items]
        learned = slice(sensitivity.num_unlearned, None)
        num_changed = _num_changed(items[learned], others[learned])
        if num_changed < _MIN_ACTIONS:
            return skipped(
                f"the stored policy is certain of all but {num_changed} actions: no other policy"
                f" changes their log-probabilities by {_MIN_CHANGE_NATS:g}"
            )
    else:
        others = Perturbation(field="extras", rows=_every_other_valid).apply(items)
    if sensitivity.greatest_effect(others) <= sensitivity.rounding:
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
    if not _has_policy(items[0]):
        return passed("the loss uses the stored log-probabilities")
    base, *changed = (
        [_with_policies(item, change) for item in items]
        for change in (_base, _actions_changed, _modes_changed)
    )
    if _num_changed(base[learned], changed[0][learned]) < _MIN_ACTIONS:
        return passed(
            "the loss uses the stored policy; actions taken are modes, with few exceptions"
        )
    of_actions, of_modes = (sensitivity.greatest_effect(each, before=base) for each in changed)
    if of_actions > sensitivity.rounding:
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


def _with_other_policies(item: RecordedTrajectory) -> RecordedTrajectory:
    return with_other_policies(item, _every_other_valid(item.trajectory.env_steps)[:-1])


def _num_changed(before: Sequence[RecordedTrajectory], after: Sequence[RecordedTrajectory]) -> int:
    """Return the number of valid actions whose stored log-probability changes clearly."""

    def count(one: RecordedTrajectory, other: RecordedTrajectory) -> int:
        pairs = zip(stored_log_probs(one), stored_log_probs(other), strict=True)
        is_changed = [np.abs(b - a) >= _MIN_CHANGE_NATS for a, b in pairs]
        return int(np.count_nonzero(one.trajectory.valid & np.any(is_changed, axis=0)))

    return sum(map(count, before, after))


def _every_other_valid(env_steps: EnvStep) -> np.ndarray:
    """Select half of the valid rows: in all of them, weights divided by their mean would cancel."""
    is_even = np.arange(env_steps.reward.size).reshape(env_steps.reward.shape) % 2 == 0
    return perturbation.is_valid(env_steps) & is_even


def _is_stale(subject: Subject) -> bool:
    """Whether the parameters may differ from those that acted."""
    lag = subject.config.policy_lag
    # The config was validated: an agent that declares no correction was allowed this lag.
    corrects = declared(subject.config.agent, AgentSettings, "corrects_for_policy_lag")
    return (lag != 0 and corrects) or subject.updates_per_cycle > 1


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
    return any(map(_is_policy, stored_policies(item).values()))


def _with_policies(item: RecordedTrajectory, change: _Change) -> RecordedTrajectory:
    """Return the trajectory with other policies in its extras."""
    action, stored = item.trajectory.action, stored_policies(item)

    def changed(path: tuple, node: Any) -> Any:
        if path not in stored or not _is_policy(node):
            return node
        if isinstance(node, MultiCategorical):
            pairs = zip(node.choices, np.moveaxis(action, -1, 0), strict=True)
            return MultiCategorical(choices=tuple(change(*pair) for pair in pairs))
        return change(node, action)

    extras = jax.tree_util.tree_map_with_path(
        changed, item.trajectory.extras, is_leaf=is_distribution
    )
    return item.with_trajectory(extras=extras)


def _base(policy: Any, action: np.ndarray) -> Any:
    """Return a policy with a known mode, of which the next two differ in one log-probability."""
    if isinstance(policy, DiagonalGaussian):
        return policy
    return _with_probabilities(policy, action, _BASE)


def _actions_changed(policy: Any, action: np.ndarray) -> Any:
    """Change the log-probabilities of the actions taken, and not those of the modes."""
    if isinstance(policy, DiagonalGaussian):
        # Away from the action, whose density falls.
        away = np.copysign(_SHIFT_OF_PARAMETERS, policy.mean - action)
        return dataclasses.replace(policy, mean=policy.mean + away)
    return _with_probabilities(policy, action, _OTHER_ACTION)


def _modes_changed(policy: Any, action: np.ndarray) -> Any:
    """Change the log-probabilities of the modes, and not those of the actions taken."""
    if isinstance(policy, DiagonalGaussian):
        # A narrower policy, whose mean is further away from the action.
        noise = (action - policy.mean) * np.exp(-policy.log_std)
        further = np.copysign(np.sqrt(np.square(noise) + 2.0 * _SHIFT_OF_PARAMETERS), noise)
        log_std = policy.log_std - _SHIFT_OF_PARAMETERS
        return DiagonalGaussian(mean=action - further * np.exp(log_std), log_std=log_std)
    return _with_probabilities(policy, action, _OTHER_MODE)


def _with_probabilities(
    policy: Categorical, action: np.ndarray, probabilities: tuple[float, float, float]
) -> Categorical:
    """Return the policy with these probabilities of mode, action taken, and all others together.

    Rows in which the action is the mode, or in which fewer than three actions are legal, stay.
    """
    logits = np.array(policy.logits)
    mode = logits.argmax(axis=-1)
    if action.shape != mode.shape:
        return policy
    number = np.arange(logits.shape[-1])
    is_mode, is_taken = (number == each[..., None] for each in (mode, action))
    is_other = np.isfinite(logits) & ~is_mode & ~is_taken
    num_others = is_other.sum(axis=-1, keepdims=True)
    of_mode, of_action, of_others = probabilities
    with np.errstate(divide="ignore"):
        changed = np.log(
            np.select(
                [is_mode, is_taken, is_other],
                [of_mode, of_action, of_others / np.maximum(num_others, 1)],
                0.0,
            )
        )
    is_asked = (action != mode)[..., None] & (num_others > 0)
    return Categorical(logits=jnp.asarray(np.where(is_asked, changed, logits).astype(logits.dtype)))


CORRECTION = Question(
    name="correction",
    ask=correction,
    property="the loss uses the stored behaviour policy",
    needs=Needs.GRADIENT,
    perturbs=(
        "what the stored policy says of the actions taken in half of the valid rows; then of "
        "actions, or of modes, alone"
    ),
    proof=(
        f"{_MIN_ACTIONS} actions whose stored log-probability changes by {_MIN_CHANGE_NATS:g}; "
        "not asked if the policy is certain of them"
    ),
    expects=(
        "an effect of the actions taken; none is a fault if data may be older than the parameters"
    ),
    bound=(
        f"the loss's rounding (see `rewards`); of modes {_MIN_EFFECT_OF_MODES:g}, so that both "
        "are not rounding"
    ),
    likely_cause=(
        "the importance weights compare the current policy with itself; a loss without them "
        "needs a policy lag of 0"
    ),
)
