"""Checks that the loss corrects stale data with the behaviour policy stored in the extras."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sebulba.agent import AgentSettings, declared
from sebulba.check import perturbation
from sebulba.check.evidence import Evidence
from sebulba.check.perturbation import Perturbation
from sebulba.check.recording import RecordedTrajectory, first_learning_cycle
from sebulba.check.result import Answer, failed, passed, skipped
from sebulba.check.sensitivity import MAX_ROUNDING
from sebulba.check.subject import Subject
from sebulba.toolkit.distributions import Categorical, DiagonalGaussian, MultiCategorical

_SHIFT_OF_PARAMETERS = np.float32(0.37)


def correction(evidence: Evidence) -> Answer:
    """Change the extras of valid rows, then only what they say of the actions taken.

    The latter leaves the log-probability of each policy's mode as it is.
    """
    subject, sensitivity = evidence.subject, evidence.loss
    items = sensitivity.items
    if not jax.tree.leaves(items[0].trajectory.extras):
        return skipped("act returns no extras")
    place = f"{items[-1].place}, rows 0 … {len(items[-1].trajectory.action) - 1}"
    change = Perturbation(
        field="extras",
        rows=perturbation.is_valid,
        action_space=subject.run_spec.environment.action_space,
    )
    others = [_with_other_log_probs(item) for item in items]
    of_actions, of_all = (
        [pair[number] for pair in others if pair is not None] for number in (0, 1)
    )
    is_known = bool(of_all) and sensitivity.is_on_policy
    if is_known:
        is_used = sensitivity.greatest_effect(of_all) > MAX_ROUNDING
    else:
        is_used = sensitivity.greatest_effect(change.apply(items)) > MAX_ROUNDING
    if not is_used:
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
    if sensitivity.greatest_effect(of_actions) <= MAX_ROUNDING:
        return failed(
            f"trajectory.extras ({place}): expected the loss to use the log-probabilities of the"
            " actions taken; changing them, but not those of the modes, changed nothing",
            "the behaviour policy's log-probability is that of its mode",
        )
    return passed("the loss uses the log-probabilities of the actions taken")


def _is_stale(subject: Subject) -> bool:
    """Whether the parameters may differ from those that acted."""
    first = first_learning_cycle(subject) or 0
    lag = subject.config.policy_lag
    # The config was validated: an agent that declares no correction was allowed this lag.
    corrects = declared(subject.config.agent, AgentSettings, "corrects_for_policy_lag")
    return (lag != 0 and corrects) or subject.agent.num_updates_per_cycle(first) > 1


def _with_other_log_probs(
    item: RecordedTrajectory,
) -> tuple[RecordedTrajectory, RecordedTrajectory] | None:
    """Return the trajectory with other log-probabilities of its actions, then of all actions.

    The former leaves those of the modes. None: no distribution in the extras allows this.
    """
    action = item.trajectory.action

    def is_known(node: Any) -> bool:
        if isinstance(node, MultiCategorical):
            return any(map(is_known, node.choices))
        return isinstance(node, DiagonalGaussian) or (
            isinstance(node, Categorical) and node.logits.shape[-1] > 2
        )

    def of_action(node: Any) -> Any:
        if not is_known(node):
            return node
        if isinstance(node, DiagonalGaussian):
            return dataclasses.replace(node, mean=node.mean + _SHIFT_OF_PARAMETERS)
        if isinstance(node, MultiCategorical):
            actions = np.moveaxis(action, -1, 0)
            return MultiCategorical(choices=tuple(map(_swapped, node.choices, actions)))
        return _swapped(node, action)

    def of_all(node: Any) -> Any:
        if not is_known(node):
            return node
        if isinstance(node, DiagonalGaussian):
            return jax.tree.map(lambda leaf: leaf + _SHIFT_OF_PARAMETERS, node)
        if isinstance(node, MultiCategorical):
            return MultiCategorical(choices=tuple(map(of_all, node.choices)))
        is_legal = jnp.isfinite(node.logits)  # see `distributions.legal_only`
        return Categorical(logits=jnp.where(is_legal, -3.0 * node.logits, node.logits))

    extras = item.trajectory.extras
    if not any(map(is_known, jax.tree.leaves(extras, is_leaf=is_known))):
        return None
    changed = [jax.tree.map(change, extras, is_leaf=is_known) for change in (of_action, of_all)]
    left, right = (
        dataclasses.replace(item, trajectory=dataclasses.replace(item.trajectory, extras=each))
        for each in changed
    )
    return left, right


def _swapped(policy: Categorical, action: np.ndarray) -> Categorical:
    """Swap the logits of the action taken and of another legal one, where neither is the mode."""
    logits = np.array(policy.logits)
    if action.shape != logits.shape[:-1]:
        return policy
    mode = logits.argmax(axis=-1)
    actions = np.arange(logits.shape[-1])
    is_other = np.isfinite(logits) & (actions != mode[..., None]) & (actions != action[..., None])
    rows, envs = np.nonzero((action != mode) & is_other.any(axis=-1))
    taken, swapped = action[rows, envs], is_other.argmax(axis=-1)[rows, envs]
    values = logits[rows, envs, taken], logits[rows, envs, swapped]
    logits[rows, envs, swapped], logits[rows, envs, taken] = values
    return Categorical(logits=jnp.asarray(logits))
