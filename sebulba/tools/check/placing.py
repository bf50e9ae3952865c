"""Checks of what depends on the learner devices: splitting states, and equal updates."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec

from sebulba.agent import Agent
from sebulba.devices.learner_devices import LearnerDevices
from sebulba.errors import ConfigError
from sebulba.learning.learner import Learner
from sebulba.ring.timing import WallClock
from sebulba.toolkit.reductions import LEARNER_AXIS
from sebulba.tools.check.capture import from_data
from sebulba.tools.check.recording import RecordedTrajectory, Recording
from sebulba.tools.check.result import (
    CheckResult,
    as_numpy,
    first_difference,
    judged,
    leaf_name,
    skipped,
)
from sebulba.tools.check.subject import Subject, env_axes
from sebulba.types import Networks, PyTree, TrajectoryItem

SPLITTING = "shard_actor_state splits the environments"
EQUALITY = "one and several learner devices learn the same"

_NUM_DEVICES = 2
_DRAWS = 48
_DIRECTIONS = 4
_STANDARD_ERRORS = 6.0
_TOLERANCE = 1e-5


def check_splitting(subject: Subject) -> CheckResult:
    """Compares each leaf's placing with the axis that more environments make longer."""
    axes = env_axes(subject.agent, subject.run_spec)
    learners = LearnerDevices(comparison_devices() or jax.local_devices()[:1])
    state = subject.start_states[0]
    placed = subject.agent.shard_actor_state(state, learners)
    leaves = zip(
        jax.tree_util.tree_leaves_with_path(state),
        jax.tree.leaves(axes),
        jax.tree.leaves(placed),
        strict=True,
    )
    for (path, local), axis, leaf in leaves:
        name = leaf_name("actor state", path)
        if axis > 0:
            return judged(
                SPLITTING,
                f"{name}: expected the environments on axis 0 of {tuple(local.shape)}, got them on"
                f" axis {axis}",
                "",
            )
        got = _split_axis(leaf)
        if got != axis:
            return judged(
                SPLITTING,
                f"{name}: expected {_describe_axis(axis)} of {tuple(local.shape)}, got"
                f" {_describe_axis(got)}",
                "",
            )
    failure = first_difference(state, placed, what="actor state, placed", axes=("env",))
    detail = f"all leaves, over {len(learners)} learner devices"
    return judged(SPLITTING, failure, detail)


def _split_axis(leaf: jax.Array) -> int:
    spec = getattr(leaf.sharding, "spec", PartitionSpec())
    return next((i for i, name in enumerate(spec) if name == LEARNER_AXIS), -1)


def _describe_axis(axis: int) -> str:
    return "the whole on every device" if axis < 0 else f"a split of axis {axis}"


def comparison_devices() -> list[jax.Device]:
    """Returns two devices of one kind, virtual ones if need be; none if there are not two."""
    for devices in (jax.local_devices(), jax.local_devices(backend="cpu")):
        if len(devices) >= _NUM_DEVICES:
            return list(devices[:_NUM_DEVICES])
    return []


def check_equality(subject: Subject, recording: Recording) -> CheckResult:
    """Compares the averaged gradients of one and of two learner devices on the same trajectories.

    Where a loss draws what it learns from, devices draw differently: there the means of many
    updates are compared, in random directions and within their standard errors.
    """
    devices = comparison_devices()
    if not devices:
        return skipped(EQUALITY, "there is one device; expected two, virtual CPU devices will do")
    if subject.run_spec.num_envs % len(devices):
        return skipped(
            EQUALITY,
            f"actor.num_envs {subject.run_spec.num_envs} is no multiple of {len(devices)} devices",
        )
    try:
        several, _ = subject.agent_on(len(devices))
    except ConfigError as error:
        return skipped(EQUALITY, f"the agent refuses {len(devices)} devices: {error}")
    one, _ = subject.agent_on(1)
    updates = [
        _Updates(subject, recording, agent, devices[:count])
        for agent, count in ((one, 1), (several, len(devices)))
    ]
    samples = [each.take(2) for each in updates]
    draws = any(not np.array_equal(*sample) for sample in samples)
    if draws:
        more = [each.take(_DRAWS - 2) for each in updates]
        samples = [np.concatenate(pair) for pair in zip(samples, more, strict=True)]
    kind = f"{devices[0].platform} devices"
    detail = f"1 and {len(devices)} {kind}: gradients to a relative {_TOLERANCE}"
    if draws:
        detail = (
            f"1 and {len(devices)} {kind}: mean gradients of {_DRAWS} updates with different draws"
            f" within {_STANDARD_ERRORS:g} standard errors"
        )
    return judged(EQUALITY, _unequal(samples, updates[0], len(devices)), detail)


def _unequal(samples: list[np.ndarray], one: "_Updates", num_devices: int) -> str | None:
    means = [sample.mean(axis=0) for sample in samples]
    errors = [sample.std(axis=0, ddof=1) / np.sqrt(len(sample)) for sample in samples]
    allowed = _STANDARD_ERRORS * np.hypot(*errors)
    # What cancels, in a direction or over the batch, leaves the rounding errors of its terms.
    sizes = np.maximum(one.sizes, 1e-3 * one.sizes.max())
    rounding = _TOLERANCE * sizes.repeat(_DIRECTIONS)
    wrong = np.abs(means[0] - means[1]) > allowed + rounding
    if not wrong.any():
        return None
    index = int(np.argmax(wrong))
    return (
        f"{one.names[index // _DIRECTIONS]}, in a random direction: expected"
        f" {means[0][index]:.6g} of 1 device, got {means[1][index]:.6g} of {num_devices} devices;"
        " is there a mean or a sum that sebulba.toolkit.reductions should take?"
    )


class _GradientsOnly:
    """An agent that keeps the gradients in place of the optimizer's state, and stays as it is."""

    def __init__(self, agent: Agent):
        self._agent = agent

    def __getattr__(self, name: str) -> Any:
        return getattr(self._agent, name)

    def init_opt_state(self, networks: Networks) -> PyTree:
        return jax.tree.map(lambda leaf: leaf * 0, networks)

    def optimize(
        self, networks: Networks, opt_state: PyTree, grads: Networks, experience: PyTree
    ) -> Any:
        del opt_state, experience
        return networks, grads

    def num_updates_per_cycle(self, cycle: int) -> int:
        del cycle
        return 1


class _Updates:
    """A learner that takes the same trajectories again and again, and does not move."""

    def __init__(
        self,
        subject: Subject,
        recording: Recording,
        agent: Agent,
        devices: Sequence[jax.Device],
    ):
        learners = LearnerDevices(devices)
        per_cycle = subject.run_spec.trajectories_per_cycle
        self._learner = Learner(
            agent=_GradientsOnly(agent),
            learner_devices=learners,
            num_envs_per_device=subject.run_spec.num_envs // len(devices),
            key=jax.random.key(subject.config.seed),
            clock=WallClock(),
            mapping_name=subject.config.learner.mapping,
        )
        items = [_placed(item, subject, learners) for item in recording.trajectories]
        self._cycles = [items[i : i + per_cycle] for i in range(0, len(items), per_cycle)]
        for cycle in self._cycles[:-1]:
            self._learner.run_cycle(cycle)
        self.sizes = np.zeros(0)  # of the latest update's gradient, the sum of each leaf
        self.names = [
            leaf_name("gradient", path)
            for path, _ in jax.tree_util.tree_leaves_with_path(self._learner.state.opt_state)
        ]

    def take(self, num_updates: int) -> np.ndarray:
        """Returns the gradients of updates `[n, leaves · directions]`."""
        projections = []
        for _ in range(num_updates):
            self._learner.run_cycle(self._cycles[-1])
            rng = np.random.default_rng(0)
            leaves = jax.tree.leaves(as_numpy(self._learner.state.opt_state))
            self.sizes = np.array([np.abs(leaf).sum(dtype=np.float64) for leaf in leaves])
            projections.append(np.concatenate([_project(leaf, rng) for leaf in leaves]))
        return np.stack(projections)


def _project(leaf: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    signs = rng.choice([-1.0, 1.0], size=(_DIRECTIONS, leaf.size))
    return signs @ leaf.reshape(-1).astype(np.float64)


def _placed(item: RecordedTrajectory, subject: Subject, learners: LearnerDevices) -> TrajectoryItem:
    agent, like = subject.agent, subject.start_states[0]
    return TrajectoryItem(
        initial_state=agent.shard_actor_state(from_data(item.initial_state, like), learners),
        final_state=agent.shard_actor_state(from_data(item.final_state, like), learners),
        trajectory=learners.split(item.trajectory, axis=1),
        actor_id=item.actor_id,
        sequence_number=item.cycle,
        policy_version=0,
        env_steps=0,
        episodes=(),
    )
