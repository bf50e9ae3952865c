"""Run the ring in one thread, and record every trajectory and compilation."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Self

import gymnasium
import jax
import jax.monitoring
import numpy as np

from sebulba.check.capture import CapturedExperience, UpdateArguments, from_data
from sebulba.check.result import as_numpy
from sebulba.check.subject import Subject, env_axes
from sebulba.devices.learner_devices import LearnerDevices
from sebulba.pytree import leaf_name
from sebulba.ring.records import CycleReport, Unroll, UnrollInfo
from sebulba.ring.ring import Observer
from sebulba.ring.running import run
from sebulba.ring.update import LearnerState
from sebulba.types import ActorState, EnvStep, Networks, PyTree, Trajectory

_NUM_LEARNING_CYCLES = 3
_MAX_RECORDED_CYCLES = 24  # learner cycles; bounds the memory of recorded trajectories

_COMPILED = "/jax/core/compile/backend_compile_duration"


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class RecordedTrajectory:
    """A trajectory as `update_experience` received it, joined over the learner devices."""

    actor_id: int
    cycle: int  # act cycle of this actor
    initial_state: ActorState  # NumPy, random keys as their data
    final_state: ActorState
    trajectory: Trajectory  # NumPy
    networks: Networks  # those that the actor used
    action_space: gymnasium.Space

    @property
    def place(self) -> str:
        """Name the actor and its act cycle, for messages."""
        return f"actor {self.actor_id}, act cycle {self.cycle}"

    @property
    def acted_rows(self) -> EnvStep:
        """The rows `[T, B, ...]` that actions were selected from: all but the last."""
        return jax.tree.map(lambda leaf: leaf[:-1], self.trajectory.env_steps)

    def with_trajectory(self, **changes: Any) -> Self:
        """Return it with other values of these fields of `Trajectory`."""
        return dataclasses.replace(self, trajectory=dataclasses.replace(self.trajectory, **changes))

    def with_rows(self, **changes: Any) -> Self:
        """Return it with other values of these fields of `EnvStep`."""
        env_steps = dataclasses.replace(self.trajectory.env_steps, **changes)
        return self.with_trajectory(env_steps=env_steps)

    def placed(self, subject: Subject, devices: LearnerDevices) -> Unroll:
        """Return the trajectory as a learner on these devices receives it."""
        agent, like = subject.agent, subject.start_states[0]
        return Unroll(
            initial_state=agent.shard_actor_state(from_data(self.initial_state, like), devices),
            final_state=agent.shard_actor_state(from_data(self.final_state, like), devices),
            trajectory=devices.split(self.trajectory, axis=1),
            actor_id=devices.replicate(np.int32(self.actor_id)),
        )


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Recording:
    """The trajectories, compilations and donations of a run."""

    trajectories: tuple[RecordedTrajectory, ...]  # the first ones, in the learner's order
    num_cycles: int  # learner cycles
    num_updates: int
    late_compilations: tuple[str, ...]  # functions compiled after their first call
    kept_leaf: str | None  # the first leaf that a cycle did not donate; None: all were
    first_networks: Networks  # the learner's, before the first cycle
    networks: Networks  # the learner's, after the last cycle


def record(subject: Subject) -> Recording:
    """Run until the agent has learned for some cycles and every actor has acted twice."""
    ring, spec = subject.ring, subject.run_spec
    first = subject.first_learning_cycle or 0
    turns = -(-2 * spec.num_actors // spec.trajectories_per_cycle)
    num_cycles = max(first + _NUM_LEARNING_CYCLES, turns + 1)

    recorder = _Recorder(subject, num_cycles)
    jax.monitoring.register_event_duration_secs_listener(recorder.on_event)
    try:
        run(ring, mode="serial", observers=[recorder])
    finally:
        jax.monitoring.unregister_event_duration_listener(recorder.on_event)
    return recorder.finish()


class _Recorder(Observer):
    """Records learner cycles, and ends the run after some of them."""

    def __init__(self, subject: Subject, num_cycles: int):
        self._subject = subject
        self._num_cycles = num_cycles
        self._axes = env_axes(subject.agent, subject.run_spec)
        self._trajectories: list[RecordedTrajectory] = []
        # A copy: a view would keep the buffers, which the first cycle has to donate.
        self._first_networks = jax.tree.map(np.copy, as_numpy(subject.ring.learner.state.networks))
        self._networks = [self._published()]
        self._state = _donated(subject.ring.learner.state)
        self._kept_leaf: str | None = None
        self._compiled: list[str] = []
        self._late: list[str] = []
        self._num_cycles_of = [0] * subject.run_spec.num_actors
        self._seen: set[str] = set()

    def on_event(self, event: str, duration_secs: float, **kwargs: str | int) -> None:
        del duration_secs
        if event == _COMPILED:
            self._compiled.append(str(kwargs.get("fun_name", "a function")))

    def on_cycle(self, report: CycleReport) -> None:
        ring, learner = self._subject.ring, self._subject.ring.learner
        ring.end.goal = report.num_cycles >= self._num_cycles
        self._note_compilations(report.infos)
        kept = _first_kept_leaf("learner state", self._state)
        self._kept_leaf = self._kept_leaf or kept
        self._state = _donated(learner.state)
        if learner.num_cycles <= _MAX_RECORDED_CYCLES:
            self._keep(report.infos, learner.state.experience)
            self._networks.append(self._published())
        # Discard what the check itself has compiled.
        self._compiled.clear()

    def _note_compilations(self, infos: Sequence[UnrollInfo]) -> None:
        """Record compilations of a cycle in which every function had been called before."""
        learner = self._subject.ring.learner
        num_updates = self._subject.agent.num_updates_per_cycle(learner.num_cycles - 1)
        # Each actor has its own act cycle, and each number of updates its own program.
        called = {f"actor {info.actor_id}" for info in infos} | {f"{num_updates} updates"}
        if called <= self._seen:
            self._late += self._compiled
        self._seen |= called

    def _keep(self, infos: Sequence[UnrollInfo], experience: CapturedExperience) -> None:
        arguments = as_numpy(experience.arguments)
        for number, info in enumerate(infos):
            joined = _joined(jax.tree.map(lambda x, n=number: x[:, n], arguments), self._axes)
            self._trajectories.append(
                RecordedTrajectory(
                    actor_id=int(joined.actor_id),
                    cycle=self._num_cycles_of[info.actor_id],
                    initial_state=joined.initial_state,
                    final_state=joined.final_state,
                    trajectory=joined.trajectory,
                    networks=self._networks[info.policy_version],
                    action_space=self._subject.run_spec.environment.action_space,
                )
            )
            self._num_cycles_of[info.actor_id] += 1

    def finish(self) -> Recording:
        learner = self._subject.ring.learner
        return Recording(
            trajectories=tuple(self._trajectories),
            num_cycles=learner.num_cycles,
            num_updates=learner.num_updates,
            late_compilations=tuple(self._late),
            kept_leaf=self._kept_leaf,
            first_networks=self._first_networks,
            networks=as_numpy(learner.state.networks),
        )

    def _published(self) -> Networks:
        return as_numpy(self._subject.ring.learner.published)


def _first_kept_leaf(what: str, tree: PyTree) -> str | None:
    """Return the name of the first leaf that was not donated; None: all were."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if not leaf.is_deleted():
            return leaf_name(path, what)
    return None


def _donated(state: LearnerState) -> LearnerState:
    """Return the learner state without the recorded arguments, which the check itself reads."""
    return dataclasses.replace(state, experience=state.experience.of_agent)


def _joined(arguments: UpdateArguments, axes: PyTree) -> UpdateArguments:
    """Concatenate the learner devices' shares (leading axis) along the environments."""

    def join(leaf: np.ndarray, axis: int) -> np.ndarray:
        return leaf[0] if axis < 0 else np.concatenate(list(leaf), axis=axis)

    return UpdateArguments(
        initial_state=jax.tree.map(join, arguments.initial_state, axes),
        final_state=jax.tree.map(join, arguments.final_state, axes),
        trajectory=jax.tree.map(lambda leaf: join(leaf, 1), arguments.trajectory),
        actor_id=arguments.actor_id[0],
    )
