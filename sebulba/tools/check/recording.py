"""Runs the ring in one thread, and keeps what went through it."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.monitoring
import numpy as np

from sebulba.learning.update import LearnerState
from sebulba.run.supervision import run
from sebulba.tools.check.capture import CapturedExperience, Given
from sebulba.tools.check.result import as_numpy, leaf_name
from sebulba.tools.check.subject import Subject, env_axes
from sebulba.types import ActorState, Networks, PyTree, Trajectory, TrajectoryItem

_MOST_CYCLES = 1_000  # by then an agent has to take updates
_LEARNING_CYCLES = 3
_MOST_RECORDED = 24  # learner cycles, whose trajectories are kept

_COMPILED = "/jax/core/compile/backend_compile_duration"


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class RecordedTrajectory:
    """One trajectory as `update_experience` was given it, put together from all learner devices."""

    actor_id: int
    cycle: int  # of this actor
    initial_state: ActorState  # NumPy, random keys as their data
    final_state: ActorState
    trajectory: Trajectory  # NumPy
    networks: Networks  # that the actor had

    @property
    def place(self) -> str:
        """For messages."""
        return f"actor {self.actor_id}, cycle {self.cycle}"


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Recording:
    """What went through the ring."""

    trajectories: tuple[RecordedTrajectory, ...]  # from the first on, in the learner's order
    num_cycles: int  # of the learner
    num_updates: int
    late_compilations: tuple[str, ...]  # functions compiled again in a cycle like earlier ones
    kept_learner_leaf: str | None  # a leaf that the learner did not donate
    networks: Networks  # of the learner, in the end


def first_learning_cycle(subject: Subject) -> int | None:
    """Returns the first learner cycle with an update, if there is one early on."""
    counts = (subject.agent.num_updates_per_cycle(cycle) for cycle in range(_MOST_CYCLES))
    return next((cycle for cycle, count in enumerate(counts) if count), None)


def record(subject: Subject) -> Recording:
    """Runs until the agent has learned for some cycles and every actor has acted twice."""
    recorder = _Recorder(subject)
    ring, spec = subject.ring, subject.run_spec
    first = first_learning_cycle(subject) or 0
    turns = -(-2 * spec.num_actors // spec.trajectories_per_cycle)
    num_cycles = max(first + _LEARNING_CYCLES, turns + 1)

    def after_cycle(items: Sequence[TrajectoryItem]) -> None:
        recorder.after_cycle(items)
        ring.run_end.goal = ring.learner.num_cycles >= num_cycles

    jax.monitoring.register_event_duration_secs_listener(recorder.on_event)
    try:
        run(ring, mode="serial", after_cycle=after_cycle)
    finally:
        jax.monitoring.unregister_event_duration_listener(recorder.on_event)
    return recorder.finish()


class _Recorder:
    def __init__(self, subject: Subject):
        self._subject = subject
        self._axes = env_axes(subject.agent, subject.run_spec)
        self._trajectories: list[RecordedTrajectory] = []
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

    def after_cycle(self, items: Sequence[TrajectoryItem]) -> None:
        learner = self._subject.ring.learner
        self._note_compilations(items)
        kept = first_kept_leaf("the learner's state", self._state)
        self._kept_leaf = self._kept_leaf or kept
        self._state = _donated(learner.state)
        if learner.num_cycles <= _MOST_RECORDED:
            self._keep(items, learner.state.experience)
            self._networks.append(self._published())
        # What the check itself compiles is none of the ring's.
        self._compiled.clear()

    def _note_compilations(self, items: Sequence[TrajectoryItem]) -> None:
        """Compilations are late where everything that the cycle called had been called before."""
        learner = self._subject.ring.learner
        num_updates = self._subject.agent.num_updates_per_cycle(learner.num_cycles - 1)
        called = {f"actor {item.actor_id}" for item in items}
        called |= {"no update"} if num_updates == 0 else {"the first update"}
        called |= {"another update"} if num_updates > 1 else set()
        if called <= self._seen:
            self._late += self._compiled
        self._seen |= called

    def _keep(self, items: Sequence[TrajectoryItem], experience: CapturedExperience) -> None:
        given = as_numpy(experience.given)
        for number, item in enumerate(items):
            whole = _whole(jax.tree.map(lambda x, n=number: x[:, n], given), self._axes)
            self._trajectories.append(
                RecordedTrajectory(
                    actor_id=int(whole.actor_id),
                    cycle=self._num_cycles_of[item.actor_id],
                    initial_state=whole.initial_state,
                    final_state=whole.final_state,
                    trajectory=whole.trajectory,
                    networks=self._networks[item.policy_version],
                )
            )
            self._num_cycles_of[item.actor_id] += 1

    def finish(self) -> Recording:
        learner = self._subject.ring.learner
        return Recording(
            trajectories=tuple(self._trajectories),
            num_cycles=learner.num_cycles,
            num_updates=learner.num_updates,
            late_compilations=tuple(self._late),
            kept_learner_leaf=self._kept_leaf,
            networks=as_numpy(learner.state.networks),
        )

    def _published(self) -> Networks:
        return as_numpy(self._subject.ring.learner.published)


def first_kept_leaf(what: str, tree: PyTree) -> str | None:
    """Returns the name of a leaf that was not donated, if there is one."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if not leaf.is_deleted():
            return leaf_name(what, path)
    return None


def _donated(state: LearnerState) -> LearnerState:
    """Returns the state without what the check has added to it, and reads."""
    return dataclasses.replace(state, experience=state.experience.of_agent)


def _whole(given: Given, axes: PyTree) -> Given:
    """Joins the learner devices' shares, which lead, on the axis of environments."""

    def join(leaf: np.ndarray, axis: int) -> np.ndarray:
        return leaf[0] if axis < 0 else np.concatenate(list(leaf), axis=axis)

    return Given(
        initial_state=jax.tree.map(join, given.initial_state, axes),
        final_state=jax.tree.map(join, given.final_state, axes),
        trajectory=jax.tree.map(lambda leaf: join(leaf, 1), given.trajectory),
        actor_id=given.actor_id[0],
    )
