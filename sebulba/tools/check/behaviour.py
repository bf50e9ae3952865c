"""Checks that the loss corrects stale data with the behaviour policy stored in the extras."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sebulba.toolkit.distributions import Categorical, DiagonalGaussian
from sebulba.tools.check import perturbation
from sebulba.tools.check.names import CORRECTION
from sebulba.tools.check.perturbation import Perturbation
from sebulba.tools.check.recording import RecordedTrajectory, first_learning_cycle
from sebulba.tools.check.result import CheckResult, failed, passed, skipped
from sebulba.tools.check.sensitivity import LossSensitivity
from sebulba.tools.check.subject import Subject

_LEAST_CHANGE = 1e-5  # relative to the greatest gradient; less is rounding
_SHIFT = np.float32(0.37)


def check_correction(subject: Subject, sensitivity: LossSensitivity) -> CheckResult:
    """Change the extras of valid rows, then only what they say of the actions taken.

    The latter leaves the log-probability of each policy's mode as it is.
    """
    items = sensitivity.items
    if not jax.tree.leaves(items[0].trajectory.extras):
        return skipped(CORRECTION, "act returns no extras")
    place = f"{items[-1].place}, rows 0 … {len(items[-1].trajectory.action) - 1}"
    change = Perturbation(
        field="extras",
        rows=perturbation.is_valid,
        action_space=subject.run_spec.environment.action_space,
    )
    if not sensitivity.has_effect(change.apply(items)):
        if not sensitivity.is_on_policy:
            return skipped(CORRECTION, "the loss of the replay does not use the extras")
        if not _is_stale(subject):
            return skipped(CORRECTION, "the data are never stale, and the loss ignores the extras")
        return failed(
            CORRECTION,
            f"trajectory.extras ({place}): expected the loss to use the extras in valid rows, since"
            " trajectories may be older than the parameters; changing them changed neither the loss"
            " nor its gradients; likely cause: the importance weights compare the current policy"
            " with itself; a loss without them needs a policy lag of 0",
        )
    changed = [_with_other_log_probs(item) for item in items]
    if any(each is None for each in changed) or not sensitivity.is_on_policy:
        return passed(CORRECTION, "the loss uses the extras in valid rows")
    if sensitivity.relative_change([each for each in changed if each]) < _LEAST_CHANGE:
        return failed(
            CORRECTION,
            f"trajectory.extras ({place}): expected the loss to use the log-probabilities of the"
            " actions taken; changing them, but not those of the modes, changed nothing; likely"
            " cause: the behaviour policy's log-probability is that of its mode",
        )
    return passed(CORRECTION, "the loss uses the log-probabilities of the actions taken")


def _is_stale(subject: Subject) -> bool:
    """Whether the parameters may differ from those that acted."""
    first = first_learning_cycle(subject) or 0
    lag = subject.config.learner.policy_lag
    # The config was validated: an agent that declares no correction was allowed this lag.
    corrects = getattr(subject.config.agent, "corrects_for_policy_lag", True)
    return (lag != 0 and corrects) or subject.agent.num_updates_per_cycle(first) > 1


def _with_other_log_probs(item: RecordedTrajectory) -> RecordedTrajectory | None:
    """Return the trajectory with other log-probabilities of its actions, but not of the modes.

    None: the extras have no distribution for which this is possible.
    """
    action = item.trajectory.action
    found: list[Any] = []

    def change(node: Any) -> Any:
        if isinstance(node, DiagonalGaussian):
            found.append(node)
            return dataclasses.replace(node, mean=node.mean + _SHIFT)
        if isinstance(node, Categorical) and node.logits.shape[-1] > 2:
            found.append(node)
            return _swapped(node, action)
        return node

    def is_known(node: Any) -> bool:
        return isinstance(node, Categorical | DiagonalGaussian)

    extras = jax.tree.map(change, item.trajectory.extras, is_leaf=is_known)
    if not found:
        return None
    trajectory = dataclasses.replace(item.trajectory, extras=extras)
    return dataclasses.replace(item, trajectory=trajectory)


def _swapped(policy: Categorical, action: np.ndarray) -> Categorical:
    """Swap the logits of the action taken and of another one, where neither is the mode."""
    logits = np.array(policy.logits)
    if action.shape != logits.shape[:-1]:
        return policy
    mode = logits.argmax(axis=-1)
    size = logits.shape[-1]
    other = (action + 1) % size
    other = np.where(other == mode, (other + 1) % size, other)
    rows, envs = np.nonzero((action != mode) & (other != action))
    taken, swapped = action[rows, envs], other[rows, envs]
    values = logits[rows, envs, taken], logits[rows, envs, swapped]
    logits[rows, envs, swapped], logits[rows, envs, taken] = values
    return Categorical(logits=jnp.asarray(logits))
