"""Whether one and two learner devices take equal updates, and stay equal."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sebulba.agent import Agent
from sebulba.check.evidence import Evidence
from sebulba.check.question import Needs, Question
from sebulba.check.recording import RecordedTrajectory, Recording
from sebulba.check.result import Answer, as_numpy, passed_unless, skipped
from sebulba.check.subject import Subject, env_axes
from sebulba.check.trees import leaf_names
from sebulba.devices.learner_devices import LearnerDevices
from sebulba.errors import ConfigError
from sebulba.pytree import is_key, leaf_name
from sebulba.types import ActorState, Clock, Networks, PyTree

NUM_DEVICES = 2
_NUM_SAMPLED_UPDATES = 48  # averaged, where the loss samples
_NUM_DIRECTIONS = 4  # random projections of each leaf's gradient
_MAX_STANDARD_ERRORS = 6.0  # far enough that no check of sound agents fails by chance
_MAX_RELATIVE_ERROR = 1e-5  # sums on one and on two devices round differently
_NUM_ORDERS = 8  # of environments on one device, to measure the rounding of a sum
_TIMES_AN_ORDER = 4.0  # two devices are a further order; the greatest of eight is rarely exceeded


def comparison_devices() -> list[jax.Device]:
    """Return two devices of one kind, virtual CPU devices if need be; empty if there are none."""
    for devices in (jax.local_devices(), jax.local_devices(backend="cpu")):
        if len(devices) >= NUM_DEVICES:
            return list(devices[:NUM_DEVICES])
    return []


def reason_for_one_device(evidence: Evidence) -> str | None:
    """Return why two learner devices cannot be compared with one; None: they can."""
    num_envs = evidence.subject.run_spec.num_streams
    if not comparison_devices():
        return f"expected {NUM_DEVICES} devices, virtual CPU devices included, got one"
    if num_envs % NUM_DEVICES:
        return f"expected actor.num_envs to be a multiple of {NUM_DEVICES}, got {num_envs}"
    return None


def _on_one_and_two(evidence: Evidence) -> "tuple[_Updates, _Updates] | str":
    """Return the updates of one and of two learner devices, or why there are none."""
    subject, devices = evidence.subject, comparison_devices()
    reason = reason_for_one_device(evidence)
    if reason is not None:
        return reason
    try:
        several, _ = subject.agent_on(len(devices))
    except ConfigError as error:
        return f"the agent cannot use {len(devices)} learner devices: {error}"
    one, _ = subject.agent_on(1)
    updates = (
        _Updates(subject, evidence.recording, agent, devices[:count])
        for agent, count in ((one, 1), (several, len(devices)))
    )
    return next(updates), next(updates)


def devices(evidence: Evidence) -> Answer:
    """Compare the mean gradients of one and of two learner devices on the same trajectories.

    Where a loss samples (a replay, minibatches), the devices sample differently. Then the means of
    many updates are compared, projected on random directions and within their standard errors.
    """
    updates = evidence.shared(_on_one_and_two)
    if isinstance(updates, str):
        return skipped(updates)
    samples = [each.gradients(2) for each in updates]
    is_sampled = any(not np.array_equal(*sample) for sample in samples)
    if is_sampled:
        more = [each.gradients(_NUM_SAMPLED_UPDATES - 2) for each in updates]
        samples = [np.concatenate(pair) for pair in zip(samples, more, strict=True)]
    detail = f"equal gradients, to a relative {_MAX_RELATIVE_ERROR}"
    if is_sampled:
        detail = (
            f"equal mean gradients of {_NUM_SAMPLED_UPDATES} updates with different samples, to"
            f" {_MAX_STANDARD_ERRORS:g} standard errors"
        )
    failure = _difference(samples, updates[0], is_sampled=is_sampled)
    return passed_unless(failure, f"1 and {NUM_DEVICES} {updates[1].platform} devices: {detail}")


def replicas(evidence: Evidence) -> Answer:
    """Compare the networks of two learner devices after an update."""
    updates = evidence.shared(_on_one_and_two)
    if isinstance(updates, str):
        return skipped(updates)
    several = updates[1]
    several.gradients(1)
    detail = f"equal networks on {NUM_DEVICES} {several.platform} devices after an update"
    return passed_unless(several.differing_replica(), detail)


def _difference(samples: list[np.ndarray], one: "_Updates", *, is_sampled: bool) -> str | None:
    means = [sample.mean(axis=0) for sample in samples]
    errors = [sample.std(axis=0, ddof=1) / np.sqrt(len(sample)) for sample in samples]
    allowed = _MAX_STANDARD_ERRORS * np.hypot(*errors)
    # Terms that cancel, in a projection or over the batch, leave their rounding errors.
    sizes = np.maximum(one.sizes, 1e-3 * one.sizes.max())
    rounding = _MAX_RELATIVE_ERROR * sizes.repeat(_NUM_DIRECTIONS)
    gaps = np.abs(means[0] - means[1])
    wrong = gaps > allowed + rounding
    if wrong.any() and not is_sampled:
        # A leaf's terms may cancel almost completely: standardised returns sum to 0, and so does
        # their product with what every row has in common. Then the terms, and not the gradient,
        # give the rounding its size. More than that of the greatest leaf is no rounding.
        most = _MAX_RELATIVE_ERROR * one.sizes.max()
        measured = _TIMES_AN_ORDER * one.rounding_of_orders()
        wrong &= gaps > np.minimum(measured, most)
    if not wrong.any():
        return None
    index = int(np.argmax(wrong))
    return (
        f"{one.names[index // _NUM_DIRECTIONS]}, projected on a random direction: expected"
        f" {means[0][index]:.6g} as on 1 device, got {means[1][index]:.6g} on {NUM_DEVICES}"
    )


class _GradientsOnly:
    """An agent that changes no parameter, and stores in its optimizer state what it would change.

    That state has the gradients, and the networks and optimizer state after one step from a new
    optimizer state.
    """

    def __init__(self, agent: Agent):
        self._agent = agent

    def __getattr__(self, name: str) -> Any:
        return getattr(self._agent, name)

    def init_opt_state(self, networks: Networks) -> PyTree:
        start = self._agent.init_opt_state(networks)
        grads = jax.tree.map(lambda leaf: leaf * 0, networks)
        after = jax.tree.map(jnp.copy, (networks, start))
        return {"grads": grads, "start": start, "after": after}

    def optimize(
        self,
        networks: Networks,
        opt_state: PyTree,
        grads: Networks,
        experience: PyTree,
        clock: Clock,
    ) -> Any:
        start = opt_state["start"]
        after = self._agent.optimize(networks, start, grads, experience, clock)
        return networks, {"grads": grads, "start": start, "after": after}

    def num_updates_per_cycle(self, cycle: int) -> int:
        del cycle
        return 1


def with_other_keys(item: RecordedTrajectory, like: ActorState, *, seed: int) -> RecordedTrajectory:
    """Return a trajectory whose actor states have other random keys.

    An agent may draw its minibatches with an actor's key, when the trajectory comes in: with the
    same keys, all updates would have the same samples.

    Args:
        item: the trajectory, with the data of its keys.
        like: an actor state with the same leaves, keys as such.
        seed: of the keys.
    """
    rng = np.random.default_rng((seed, item.actor_id))

    def other(leaf: Any, like: Any) -> Any:
        return rng.integers(2**32, size=leaf.shape, dtype=np.uint32) if is_key(like) else leaf

    initial, final = (
        jax.tree.map(other, state, like) for state in (item.initial_state, item.final_state)
    )
    return dataclasses.replace(item, initial_state=initial, final_state=final)


def reordered(item: RecordedTrajectory, order: np.ndarray, axes: PyTree) -> RecordedTrajectory:
    """Return a trajectory with its environments in another order.

    Args:
        item: the trajectory.
        order: `[B]`, the number of the environment in each place.
        axes: the environment axis of each leaf of the actor state; -1: none.
    """

    def taken(leaf: np.ndarray, axis: int) -> np.ndarray:
        return leaf if axis < 0 else np.take(leaf, order, axis=axis)

    initial, final = (
        jax.tree.map(taken, state, axes) for state in (item.initial_state, item.final_state)
    )
    trajectory = jax.tree.map(lambda leaf: taken(leaf, 1), item.trajectory)
    return dataclasses.replace(
        item, initial_state=initial, final_state=final, trajectory=trajectory
    )


class _Updates:
    """A learner that computes gradients of the same trajectories, and changes no parameter."""

    def __init__(
        self,
        subject: Subject,
        recording: Recording,
        agent: Agent,
        devices: Sequence[jax.Device],
    ):
        learners = LearnerDevices(devices)
        self.platform = devices[0].platform
        per_cycle = subject.run_spec.trajectories_per_cycle
        self._learner = subject.learner(_GradientsOnly(agent), devices)
        self._subject, self._learners = subject, learners
        *before, self._newest = (
            recording.trajectories[i : i + per_cycle]
            for i in range(0, len(recording.trajectories), per_cycle)
        )
        self._env_steps = 0  # before the newest cycle
        self._num_updates = 0  # of the newest cycle
        for cycle in before:
            unrolls = [item.placed(subject, learners) for item in cycle]
            self._learner.update(unrolls, env_steps=self._env_steps)
            self._env_steps += sum(int(item.trajectory.valid.sum()) for item in cycle)
        self.sizes = np.zeros(0)  # of the gradients of each leaf, in the latest update
        self.names = leaf_names("gradient", self._grads)

    @property
    def _grads(self) -> Networks:
        return self._learner.state.opt_state["grads"]

    def differing_replica(self) -> str | None:
        """Describe the first leaf that an update changes differently on two learner devices."""
        after = self._learner.state.opt_state["after"]
        leaves = zip(
            jax.tree_util.tree_leaves_with_path(after[0]),
            jax.tree.leaves(self._learner.state.networks),
            strict=True,
        )
        for (path, leaf), before in leaves:
            shards = [as_numpy(shard.data) for shard in leaf.addressable_shards]
            differs = np.flatnonzero([not np.array_equal(shards[0], each) for each in shards])
            if not len(differs):
                continue
            index = np.unravel_index(np.argmax(shards[0] != shards[differs[0]]), leaf.shape)
            start = as_numpy(before.addressable_shards[0].data)[index]
            return (
                f"{leaf_name(path, 'networks')}{list(map(int, index))} (first update): expected the"
                f" same on every learner device, got {shards[0][index]:.6g} on device 0 and"
                f" {shards[differs[0]][index]:.6g} on device {differs[0]} ({start:.6g} before)"
            )
        return None

    def gradients(self, num_updates: int) -> np.ndarray:
        """Return the projected gradients of updates, `[num_updates, leaves · directions]`."""
        return np.stack([self._projections(self._newest) for _ in range(num_updates)])

    def rounding_of_orders(self) -> np.ndarray:
        """Return how far other orders of the environments move each projection.

        That is rounding by definition where the loss draws no samples.
        """
        axes = env_axes(self._subject.agent, self._subject.run_spec)
        num_envs = self._newest[0].trajectory.valid.shape[1]
        rng = np.random.default_rng(0)
        orders = [np.arange(num_envs), *(rng.permutation(num_envs) for _ in range(_NUM_ORDERS))]
        found = [
            self._projections([reordered(item, order, axes) for item in self._newest])
            for order in orders
        ]
        return np.ptp(found, axis=0)

    def _projections(self, items: Sequence[RecordedTrajectory]) -> np.ndarray:
        like = self._subject.start_states[0]
        unrolls = [
            with_other_keys(item, like, seed=self._num_updates).placed(
                self._subject, self._learners
            )
            for item in items
        ]
        self._learner.update(unrolls, env_steps=self._env_steps)
        self._num_updates += 1
        rng = np.random.default_rng(0)
        leaves = jax.tree.leaves(as_numpy(self._grads))
        self.sizes = np.array([_size(leaf) for leaf in leaves])
        return np.concatenate([_project(leaf, rng) for leaf in leaves])


def _size(leaf: np.ndarray) -> float:
    """Return the sum of absolute gradients, as one of float32 with the same rounding error."""
    rounding = jnp.finfo(leaf.dtype).eps / jnp.finfo(jnp.float32).eps
    return float(np.abs(leaf).sum(dtype=np.float64)) * float(rounding)


def _project(leaf: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    signs = rng.choice([-1.0, 1.0], size=(_NUM_DIRECTIONS, leaf.size))
    return signs @ leaf.reshape(-1).astype(np.float64)


DEVICES = Question(
    name="devices",
    ask=devices,
    property="one and two learner devices learn the same",
    needs=Needs.UPDATES,
    perturbs="the number of learner devices",
    proof="the same trajectories and networks",
    expects=(
        f"the same mean gradients, projected on {_NUM_DIRECTIONS} random directions of each leaf"
    ),
    bound=(
        f"{_MAX_RELATIVE_ERROR:g} of a leaf's absolute gradients, as sums on two devices round "
        f"differently, or {_TIMES_AN_ORDER:g} times what {_NUM_ORDERS} orders of the environments "
        "move on one device, where terms cancel, but no more than that of the greatest leaf; if "
        f"the loss samples, {_MAX_STANDARD_ERRORS:g} standard errors of {_NUM_SAMPLED_UPDATES} "
        "updates: 2e-9 by chance"
    ),
    likely_cause="a mean or sum over the batch does not use sebulba.toolkit.reductions",
    needs_jit=True,
)

REPLICAS = Question(
    name="replicas",
    ask=replicas,
    property="every learner device has the same networks",
    needs=Needs.UPDATES,
    perturbs=f"takes an update on {NUM_DEVICES} learner devices",
    proof="an update with gradients",
    expects="the same networks on both",
    bound="exact: both run one program on the same averaged gradients",
    likely_cause="optimize depends on one device's experience, or on the device",
    needs_jit=True,
)
