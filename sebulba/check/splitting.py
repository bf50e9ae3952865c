"""Whether the actor state is split over the learner devices by environment."""

import jax
from jax.sharding import PartitionSpec

from sebulba.check.evidence import Evidence
from sebulba.check.learner_devices import (
    NUM_DEVICES,
    comparison_devices,
    reason_for_one_device,
)
from sebulba.check.question import Question
from sebulba.check.result import Answer, failed, first_difference, passed_unless, skipped
from sebulba.check.subject import env_axes
from sebulba.devices.learner_devices import LearnerDevices
from sebulba.pytree import leaf_name
from sebulba.toolkit.reductions import LEARNER_AXIS


def splitting(evidence: Evidence) -> Answer:
    """Check that each leaf is split along its environment axis, and replicated if it has none."""
    subject = evidence.subject
    axes = env_axes(subject.agent, subject.run_spec)
    reason = reason_for_one_device(evidence)
    if reason is not None:
        return skipped(reason)
    learners = LearnerDevices(comparison_devices())
    state = subject.start_states[0]
    placed = subject.agent.shard_actor_state(state, learners)
    leaves = zip(
        jax.tree_util.tree_leaves_with_path(state),
        jax.tree.leaves(axes),
        jax.tree.leaves(placed),
        strict=True,
    )
    for (path, local), axis, leaf in leaves:
        name, shape, got = leaf_name(path, "actor state"), tuple(local.shape), _split_axis(leaf)
        if axis > 0:
            return failed(
                f"{name} of shape {shape}: expected the environments on axis 0, got them on axis"
                f" {axis}; only leading axes can be split over learner devices"
            )
        if got != axis:
            return failed(
                f"{name} of shape {shape}: expected it {_describe_axis(axis)}, got it"
                f" {_describe_axis(got)}"
            )
    failure = first_difference(state, placed, what="actor state after placement", axes=("env",))
    return passed_unless(failure, f"every leaf, over {len(learners)} learner devices")


def _split_axis(leaf: jax.Array) -> int:
    spec = getattr(leaf.sharding, "spec", PartitionSpec())
    return next((i for i, name in enumerate(spec) if name == LEARNER_AXIS), -1)


def _describe_axis(axis: int) -> str:
    return "replicated on every device" if axis < 0 else f"split along axis {axis}"


SPLITTING = Question(
    name="splitting",
    ask=splitting,
    property="shard_actor_state splits by environment",
    perturbs=f"places an actor state on {NUM_DEVICES} learner devices",
    proof="the axis of environments is the one that grows with their number",
    expects="this axis to be split, other leaves to be replicated, and all numbers to stay",
    bound="exact: placing computes nothing",
    likely_cause="shard_actor_state places a leaf wrongly, or changes the order of environments",
)
