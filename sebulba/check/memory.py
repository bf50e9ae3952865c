"""Checks that the loss uses the memory that a trajectory began with, and forgets it at resets."""

import dataclasses
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from sebulba.check.capture import from_data
from sebulba.check.evidence import Evidence
from sebulba.check.perturbation import other_values
from sebulba.check.policy import MIN_CHANGE_OF_ACTING, differs
from sebulba.check.question import Needs, Question
from sebulba.check.recording import RecordedTrajectory
from sebulba.check.result import Answer, as_numpy, failed, is_equal, passed_unless, skipped
from sebulba.check.sensitivity import LossSensitivity
from sebulba.check.subject import Subject, env_axes
from sebulba.check.trees import is_replay
from sebulba.pytree import leaf_name
from sebulba.types import PyTree


def memory(evidence: Evidence) -> Answer:
    """Change the states that trajectories begin with, with and without a reset in row 0.

    Without one, the loss has to use every leaf that acting remembers. With one, it has to ignore
    them all; row 0 of every trajectory is made a reset, since few begin with one.
    """
    subject, sensitivity = evidence.subject, evidence.loss
    axes = env_axes(subject.agent, subject.run_spec)
    items = [_with_start(item, is_first=False) for item in sensitivity.items]
    num_rows = 1
    if not sensitivity.is_on_policy:
        # The first rows of a sequence may only restore the memory. If it reaches no further back,
        # as that of attention to a few rows, the loss is right not to depend on the stored state.
        num_rows += burn_in_length(subject)
    for leaf in remembered(subject, sensitivity.items, axes, num_rows):
        changed = _with_other_leaf(items, leaf)
        effect = sensitivity.greatest_effect(changed, before=items)
        if effect <= sensitivity.rounding and _is_expected(sensitivity, items, changed):
            name = leaf_name(leaf, "initial_state")
            return failed(
                f"{name} ({items[-1].place}, before row 0): expected the loss to use it where row 0"
                " is no reset, since acting does; changing it changed neither the loss nor its"
                " gradients",
                "the loss unrolls from a zero state instead of the stored one",
            )
    other_items = _with_other_memory(items, axes)
    if sensitivity.greatest_effect(other_items, before=items) <= sensitivity.rounding:
        return skipped("the loss does not use the actor state, and needs none of it")
    reset_items = [_with_start(item, is_first=True) for item in items]
    failure = None
    other_items = _with_other_memory(reset_items, axes)
    if sensitivity.effect(other_items, before=reset_items) > sensitivity.rounding:
        failure = (
            f"expected the loss to ignore initial_state where row 0 is a reset ({items[-1].place},"
            " row 0, env 0); changing it changed the loss or its gradients"
        )
    detail = "the loss uses initial_state, and ignores it where row 0 is a reset"
    return passed_unless(failure, detail)


def burn_in_length(subject: Subject) -> int:
    """Return the number of rows that may restore the memory; without a setting, a trajectory."""
    burn_in = subject.setting("burn_in")
    return subject.run_spec.trajectory_length if burn_in is None else burn_in


def _is_expected(
    sensitivity: LossSensitivity,
    items: Sequence[RecordedTrajectory],
    changed: Sequence[RecordedTrajectory],
) -> bool:
    """Whether the loss has to use the actor state, given trajectories that differ in it alone.

    A replay may leave it out, and unroll from a zero state (Kapturowski et al. 2019, section 3).
    """
    if sensitivity.is_on_policy:
        return True
    experiences = [sensitivity.experience(each) for each in (items, changed)]
    if not is_equal(*map(as_numpy, experiences)):
        return True
    return any(
        jax.tree.leaves(node.recurrent)
        for node in jax.tree.leaves(experiences[0], is_leaf=is_replay)
        if is_replay(node)
    )


def remembered(
    subject: Subject, items: Sequence[RecordedTrajectory], axes: PyTree, num_rows: int
) -> Iterator[tuple]:
    """Yield the paths of per-environment leaves of the actor state that change greedy acting.

    They change what is acted in the last of `num_rows` equal rows.
    Leaves that are in the extras too, such as a skill, are left out: a loss may read them there.
    """
    item = items[-1]
    row = jax.tree.map(lambda leaf: jnp.asarray(leaf[1]), item.trajectory.env_steps)
    row = dataclasses.replace(row, is_first=jnp.zeros_like(row.is_first))
    act = jax.jit(lambda networks, state: subject.agent.act(networks, state, row, greedy=True))
    last_actions = last_action_leaves(items)

    def outputs(item: RecordedTrajectory, but: tuple) -> list[np.ndarray]:
        state = from_data(item.initial_state, subject.start_states[0])
        action, extras, state = act(item.networks, state)
        for _ in range(num_rows - 1):
            # The same action in both streams, as the loss is given what was done.
            state = jax.tree_util.tree_map_with_path(
                lambda path, leaf: jnp.zeros_like(leaf) if path in last_actions else leaf, state
            )
            action, extras, state = act(item.networks, state)
        others = [leaf for path, leaf in jax.tree_util.tree_leaves_with_path(state) if path != but]
        return jax.tree.leaves(as_numpy((action, extras, others)))

    leaves = jax.tree_util.tree_leaves_with_path(item.initial_state)
    for (path, leaf), axis in zip(leaves, jax.tree.leaves(axes), strict=True):
        is_memory = axis >= 0 and not _is_in_extras(path, items)
        if is_memory and leaf.dtype != np.uint32:  # A raw random key of each environment.
            (changed,) = _with_other_leaf([item], path)
            if differs(outputs(item, path), outputs(changed, path)):
                yield path


def last_action_leaves(items: Sequence[RecordedTrajectory]) -> set[tuple]:
    """Return the paths of the leaves of the actor state that hold the last action.

    They do so after every trajectory: a counter, for example, may equal an action now and then.
    """

    def equal_leaves(item: RecordedTrajectory) -> set[tuple]:
        leaves = jax.tree_util.tree_leaves_with_path(item.final_state)
        return {path for path, leaf in leaves if np.array_equal(leaf, item.trajectory.action[-1])}

    return set.intersection(*map(equal_leaves, items))


def _is_in_extras(path: tuple, items: Sequence[RecordedTrajectory]) -> bool:
    def is_same(extra: np.ndarray, leaf: np.ndarray, continues: np.ndarray) -> bool:
        return extra.shape[1:] == leaf.shape and np.array_equal(
            extra[0][continues], leaf[continues]
        )

    def is_in(item: RecordedTrajectory) -> bool:
        leaf = dict(jax.tree_util.tree_leaves_with_path(item.initial_state))[path]
        continues = ~item.trajectory.env_steps.is_first[0]
        extras = jax.tree.leaves(item.trajectory.extras)
        return any(is_same(extra, leaf, continues) for extra in extras)

    return all(is_in(item) for item in items)


def _with_other_leaf(items: Sequence[RecordedTrajectory], path: tuple) -> list[RecordedTrajectory]:
    def change(item: RecordedTrajectory) -> RecordedTrajectory:
        state = jax.tree_util.tree_map_with_path(
            lambda each, leaf: other_values(leaf) if each == path else leaf, item.initial_state
        )
        return dataclasses.replace(item, initial_state=state)

    return [change(item) for item in items]


def _with_start(item: RecordedTrajectory, *, is_first: bool) -> RecordedTrajectory:
    """Return the trajectory with a reset in row 0, or with no end and no reset there."""
    rows = item.trajectory.env_steps
    names = ("is_first", "terminated", "truncated", "reward")
    changed = {name: getattr(rows, name).copy() for name in names}
    changed["is_first"][0] = is_first
    changed["is_first"][1] = False
    changed["terminated"][0] = changed["truncated"][0] = False
    if is_first:
        changed["reward"][0] = 0.0
    return item.with_rows(**changed)


def _with_other_memory(
    items: Sequence[RecordedTrajectory], axes: PyTree
) -> list[RecordedTrajectory]:
    """Return the trajectories with other per-environment numbers in their initial states.

    They are real or complex: integers may be positions in a memory, and are changed one at a time.

    Leaves that never change within an actor are settings, such as ε, and not memory.
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
        if axis < 0 or is_constant or not jnp.issubdtype(leaf.dtype, jnp.inexact):
            return leaf
        return other_values(leaf)

    return [
        dataclasses.replace(
            item, initial_state=jax.tree.map(change, item.initial_state, axes, is_constant)
        )
        for item in items
    ]


MEMORY = Question(
    name="memory",
    ask=memory,
    property="the loss begins episodes without memory",
    needs=Needs.GRADIENT,
    perturbs=(
        "each leaf of the states that trajectories begin with: real and complex numbers by "
        "amounts that differ from one to the next, as a LayerNorm would remove a constant"
    ),
    proof=(
        f"greedy acting changes by more than {MIN_CHANGE_OF_ACTING:g} of its greatest output; with"
        " a replay, after as many equal rows as the burn-in has"
    ),
    expects="an effect on the loss where row 0 is no reset, and none where it is",
    bound=("the loss's rounding (see `rewards`); of acting, a hundred times float32's rounding"),
    likely_cause="the recurrent state is not reset where is_first, or only after it was used",
)
