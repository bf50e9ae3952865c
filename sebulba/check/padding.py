"""Whether environments whose rows are all masked leave the gradients as they are."""

import dataclasses

import jax
import numpy as np

from sebulba.check.evidence import Evidence
from sebulba.check.one_device import OneDevice
from sebulba.check.perturbation import other_values
from sebulba.check.question import Needs, Question
from sebulba.check.recording import RecordedTrajectory
from sebulba.check.result import Answer, as_numpy, passed_unless, skipped, unclear
from sebulba.check.subject import env_axes
from sebulba.pytree import leaf_name
from sebulba.types import PyTree

_ONE_BATCH = {"num_minibatches": 1, "num_epochs": 1}  # else losses of few rows vary with the draw
_GREAT_ENTROPY_COST = 10.0  # else the gradient of an indifferent policy's entropy is lost
_MAX_RELATIVE_ERROR = 1e-4  # sums of more terms round differently


def padding(evidence: Evidence) -> Answer:
    """Append as many environments, in which every row is terminated, to every trajectory."""
    subject, sensitivity = evidence.subject, evidence.loss
    if not sensitivity.is_on_policy:
        return skipped("a replay does not draw masked transitions")
    num_envs = subject.run_spec.num_streams
    items = sensitivity.items[-subject.run_spec.trajectories_per_cycle :]
    axes = env_axes(subject.agent, subject.run_spec)
    padded = [_padded(item, axes) for item in items]
    results = []
    for width, trajectories in ((num_envs, items), (2 * num_envs, padded)):
        one = OneDevice(subject, num_envs=width, entropy_cost=_GREAT_ENTROPY_COST, **_ONE_BATCH)
        experience = one.experience(sensitivity.networks, trajectories)
        key = jax.random.key(subject.config.seed)
        (loss, _), grads = one.loss_and_gradients(
            sensitivity.networks, experience, key, one.clock(trajectories)
        )
        results.append((float(loss), as_numpy(grads)))
    (loss, grads), (other_loss, other_grads) = results
    scale = max(float(np.max(np.abs(leaf))) for leaf in jax.tree.leaves(grads) if leaf.size)
    leaves = zip(
        jax.tree_util.tree_leaves_with_path(grads), jax.tree.leaves(other_grads), strict=True
    )
    failure = None
    for (path, one), other in leaves:
        change = float(np.max(np.abs(one - other), initial=0.0))
        if change > _MAX_RELATIVE_ERROR * scale:
            index = np.unravel_index(np.argmax(np.abs(one - other)), one.shape)
            failure = (
                f"{leaf_name(path, 'gradient')} ({items[-1].place}, rows 0 …"
                f" {len(items[-1].trajectory.action)}): expected {one[index]:.6g} as without"
                f" {num_envs} more environments that are terminated in every row, got"
                f" {other[index]:.6g} (loss {loss:.6g} and {other_loss:.6g})"
            )
            break
    if failure is not None and sensitivity.has_noise:
        return unclear("the loss draws random numbers, and other ones for more environments")
    detail = f"equal gradients with {num_envs} more environments of masked rows"
    return passed_unless(failure, detail)


def _padded(item: RecordedTrajectory, axes: PyTree) -> RecordedTrajectory:
    def twice(leaf: np.ndarray, axis: int) -> np.ndarray:
        return leaf if axis < 0 else np.concatenate([leaf, leaf], axis=axis)

    trajectory = jax.tree.map(lambda leaf: twice(leaf, 1), item.trajectory)
    num_envs = item.trajectory.env_steps.reward.shape[1]
    rows = trajectory.env_steps
    # Copies of the same rows would leave the mean of all rows as it is.
    first = item.trajectory.env_steps.observation
    observation = jax.tree.map(
        lambda one, other: np.concatenate([one, other], axis=1), first, other_values(first)
    )
    terminated, truncated, is_first = (
        flag.copy() for flag in (rows.terminated, rows.truncated, rows.is_first)
    )
    terminated[:, num_envs:], truncated[:, num_envs:], is_first[:, num_envs:] = True, False, False
    env_steps = dataclasses.replace(
        rows,
        observation=observation,
        terminated=terminated,
        truncated=truncated,
        is_first=is_first,
    )
    return dataclasses.replace(
        item,
        initial_state=jax.tree.map(twice, item.initial_state, axes),
        final_state=jax.tree.map(twice, item.final_state, axes),
        trajectory=dataclasses.replace(trajectory, env_steps=env_steps),
    )


PADDING = Question(
    name="padding",
    ask=padding,
    property="environments without valid rows change nothing",
    needs=Needs.GRADIENT,
    perturbs=(
        "appends as many environments, in which every row is terminated, with other observations"
    ),
    proof="twice as many rows",
    expects="the same gradients, with a great entropy cost",
    bound=(
        f"{_MAX_RELATIVE_ERROR:g} of the greatest gradient: sums of twice as many terms round "
        "differently"
    ),
    likely_cause="a mean or a normalisation counts rows that are not valid",
)
