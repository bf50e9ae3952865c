"""Checks of what the loss learns from a stream: which rows have an effect on it, and which not.

Each question changes one field in all rows of one kind, and looks at the losses and their
gradients. What may have no effect has to give the same bits.
"""

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np

from sebulba.tools.check import perturbing
from sebulba.tools.check.influence import Lesson
from sebulba.tools.check.perturbing import Perturbation, Place, Rows, other_values
from sebulba.tools.check.recording import RecordedTrajectory
from sebulba.tools.check.result import CheckResult, failed, judged, passed, skipped
from sebulba.tools.check.subject import Subject, env_axes
from sebulba.types import EnvStep, PyTree

REWARDS = "the loss gives a reward to the step that earned it"
TERMINATION = "the loss does not look beyond a termination"
TRUNCATION = "the loss bootstraps at a truncation"
WEIGHT = "the loss gives autoreset rows weight 0"
MEMORY = "the loss begins episodes without memory"
LOSS_CHECKS = (REWARDS, TERMINATION, TRUNCATION, WEIGHT, MEMORY)

_HINTS = {
    REWARDS: "is a transition's reward that of the row it arrives at?",
    TERMINATION: "is the discount γ·(1 − terminated)?",
    TRUNCATION: "is a truncation taken for a termination?",
    WEIGHT: "does Trajectory.valid mask every term?",
    MEMORY: "is the recurrent state reset where is_first, before it is used?",
}

_MOST_PLACES = 200  # looked at to name the row


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Question:
    field: str
    rows: Rows
    kind: str  # of rows, for messages
    matters: bool


_QUESTIONS = {
    REWARDS: (
        _Question(field="reward", rows=perturbing.is_reset, kind="reset", matters=False),
        _Question(field="reward", rows=perturbing.is_terminated, kind="terminated", matters=True),
        _Question(field="reward", rows=perturbing.is_truncated, kind="truncated", matters=True),
    ),
    TERMINATION: (
        _Question(
            field="observation", rows=perturbing.is_terminated, kind="terminated", matters=False
        ),
    ),
    WEIGHT: (
        _Question(field="action", rows=perturbing.is_done, kind="done", matters=False),
        # At a truncation extras may say what the observation is worth.
        _Question(field="extras", rows=perturbing.is_terminated, kind="terminated", matters=False),
        _Question(field="action", rows=perturbing.is_going_on, kind="valid", matters=True),
    ),
    TRUNCATION: (
        _Question(
            field="observation", rows=perturbing.is_truncated, kind="truncated", matters=True
        ),
        _Question(
            field="observation",
            rows=perturbing.is_truncated_at_border,
            kind="truncated at a trajectory's border",
            matters=True,
        ),
        _Question(
            field="terminated, truncated",
            rows=perturbing.is_truncated,
            kind="truncated",
            matters=True,
        ),
    ),
}

# Of an agent whose loss may look at final observations: that it tells how an episode ended.
_KIND_OF_END = (
    _Question(field="kind of end", rows=perturbing.is_terminated, kind="terminated", matters=True),
)


def check_learning(subject: Subject, lesson: Lesson) -> list[CheckResult]:
    """Asks all questions."""
    if lesson.is_empty:
        reason = "no gradient came of the recorded trajectories"
        return [skipped(name, reason) for name in LOSS_CHECKS]
    space = subject.run_spec.environment.action_space
    results = []
    for name, questions in _questions(subject).items():
        has_to_bootstrap = name == TRUNCATION or questions is _KIND_OF_END
        if has_to_bootstrap and not _bootstraps(lesson, subject):
            reason = "the loss bootstraps nowhere, at the end of a trajectory neither"
            results.append(skipped(name, reason))
            continue
        answers = [_ask(question, lesson, space) for question in questions]
        failure = next((answer for answer in answers if answer.failure), None)
        kinds = ", ".join(answer.seen for answer in answers if answer.seen)
        if failure is not None:
            results.append(failed(name, f"{failure.failure}; {_HINTS[name]}"))
        elif not kinds:
            results.append(skipped(name, "the recorded trajectories have no such row"))
        else:
            results.append(passed(name, kinds))
    return [*results, _check_memory(subject, lesson)]


def _questions(subject: Subject) -> dict[str, tuple[_Question, ...]]:
    if getattr(subject.agent, "learns_from_final_observations", False):
        return _QUESTIONS | {TERMINATION: _KIND_OF_END}
    return _QUESTIONS


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Answer:
    seen: str = ""  # what was as it should be; nothing: there were no such rows
    failure: str = ""


def _ask(question: _Question, lesson: Lesson, space: object) -> _Answer:
    perturbation = Perturbation(field=question.field, rows=question.rows, action_space=space)
    places = list(perturbation.places(lesson.items))
    changed = perturbation.apply(lesson.items)
    if not places or not _differ(lesson.items, changed, question.field):
        return _Answer()
    effect = "matters" if question.matters else "does not matter"
    has_effect = lesson.has_effect(changed)
    if has_effect == question.matters:
        return _Answer(seen=f"{question.field} of {question.kind} rows {effect}")
    place = places[0]
    if has_effect:
        place = _first_with_effect(perturbation, places, lesson) or place
        changed = perturbation.apply(lesson.items, only=place)
    expected = "an effect on the loss or its gradients" if question.matters else "no effect"
    return _Answer(
        failure=f"{question.field} of a {question.kind} row"
        f" ({lesson.items[place.item].place}, row {place.row}, env {place.env}):"
        f" expected {expected}, got: {lesson.describe(changed)}"
    )


def _first_with_effect(
    perturbation: Perturbation, places: Sequence[Place], lesson: Lesson
) -> Place | None:
    # The newest trajectories first: they may be all that is learned from.
    newest = sorted(places, key=lambda place: -place.item)[:_MOST_PLACES]
    return next(
        (each for each in newest if lesson.has_effect(perturbation.apply(lesson.items, only=each))),
        None,
    )


def _differ(
    before: Sequence[RecordedTrajectory], after: Sequence[RecordedTrajectory], field: str
) -> bool:
    """Whether there was another value to take: a space of one action has none, nor empty extras."""
    if field not in ("action", "extras"):
        return True
    pairs = zip(before, after, strict=True)
    leaves = [(getattr(a.trajectory, field), getattr(b.trajectory, field)) for a, b in pairs]
    return any(
        not np.array_equal(x, y)
        for left, right in leaves
        for x, y in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    )


def _bootstraps(lesson: Lesson, subject: Subject) -> bool:
    """Whether there is a row whose observation counts, but not what was done there.

    The last row that matters at all is such a one, if the loss bootstraps.
    """
    space = subject.run_spec.environment.action_space
    length = subject.run_spec.trajectory_length
    num_rows = 1 + max(item.cycle for item in lesson.items) * length + length
    for row in reversed(range(num_rows)):
        observation = _at_row("observation", row, lesson.items, length, space)
        if lesson.has_effect(observation):
            return not lesson.has_effect(_at_row("action", row, lesson.items, length, space))
    return False


def _at_row(
    field: str, row: int, items: Sequence[RecordedTrajectory], length: int, space: object
) -> list[RecordedTrajectory]:
    """Returns the trajectories with a field changed in one row of the stream of every actor."""

    def changed(item: RecordedTrajectory) -> RecordedTrajectory:
        def rows(env_steps: EnvStep) -> np.ndarray:
            mask = perturbing.is_going_on(env_steps)
            number = item.cycle * length + np.arange(len(mask))
            return mask & (number == row)[:, None]

        return Perturbation(field=field, rows=rows, action_space=space).apply([item])[0]

    return [changed(item) for item in items]


def _check_memory(subject: Subject, lesson: Lesson) -> CheckResult:
    """Changes the recurrent states that trajectories begin with, as they are and after a reset.

    For the second, row 0 of every trajectory is made a reset: few of them begin with one.
    """
    axes = env_axes(subject.agent, subject.run_spec)
    if not lesson.has_effect(_with_other_memory(lesson.items, axes)):
        return skipped(MEMORY, "the loss does not use the actor state")
    failure = None
    if lesson.differs(
        _begun_anew(lesson.items), _with_other_memory(_begun_anew(lesson.items), axes)
    ):
        place = lesson.items[-1].place
        failure = (
            f"initial_state ({place}, row 0, env 0): expected no effect on loss or gradients where"
            f" is_first, got one; {_HINTS[MEMORY]}"
        )
    return judged(MEMORY, failure, "the initial state matters, but not where row 0 is a reset")


def _begun_anew(items: Sequence[RecordedTrajectory]) -> list[RecordedTrajectory]:
    """Returns the trajectories with a reset in row 0."""

    def begin_anew(item: RecordedTrajectory) -> RecordedTrajectory:
        is_first, reward = item.trajectory.env_steps.is_first, item.trajectory.env_steps.reward
        is_first, reward = is_first.copy(), reward.copy()
        is_first[0], reward[0] = True, 0.0
        env_steps = dataclasses.replace(item.trajectory.env_steps, is_first=is_first, reward=reward)
        trajectory = dataclasses.replace(item.trajectory, env_steps=env_steps)
        return dataclasses.replace(item, trajectory=trajectory)

    return [begin_anew(item) for item in items]


def _with_other_memory(
    items: Sequence[RecordedTrajectory], axes: PyTree
) -> list[RecordedTrajectory]:
    """Returns the trajectories with other floats of single environments in their initial states.

    What never changes within an actor is no memory: a rate of exploration, say.
    """
    states = [
        state
        for item in items
        if item.actor_id == items[0].actor_id
        for state in (item.initial_state, item.final_state)
    ]
    is_constant = jax.tree.map(
        lambda *leaves: all(np.array_equal(leaf, leaves[0]) for leaf in leaves), *states
    )

    def change(leaf: np.ndarray, axis: int, is_constant: bool) -> np.ndarray:
        if axis < 0 or is_constant or not np.issubdtype(leaf.dtype, np.floating):
            return leaf
        return other_values(leaf)

    return [
        dataclasses.replace(
            item, initial_state=jax.tree.map(change, item.initial_state, axes, is_constant)
        )
        for item in items
    ]
