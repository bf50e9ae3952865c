"""Checks of acting: trajectory rows, actor states, and resets of memory."""

import functools
from typing import Any

import jax
import numpy as np

from sebulba.check.capture import as_data, from_data
from sebulba.check.evidence import Evidence
from sebulba.check.perturbation import Perturbation, is_valid
from sebulba.check.policy import states_before, unroll
from sebulba.check.probe import action_code, expected_rows
from sebulba.check.question import Needs, Question
from sebulba.check.recording import RecordedTrajectory, Recording
from sebulba.check.result import (
    Answer,
    failed,
    first_difference,
    passed,
    passed_unless,
    skipped,
    unclear,
)
from sebulba.check.subject import env_axes
from sebulba.pytree import leaf_name
from sebulba.types import ActorState, PyTree

# XLA compiles this scan differently from the act cycle, and may reorder sums.
_MAX_ERROR = 1e-4  # absolute, and relative
_ROW_AXES = ("row", "env")


def rows(evidence: Evidence) -> Answer:
    """Compare every row with the probe's, given the actions of the trajectory."""
    failure, count = None, 0
    for actor_id, probe in enumerate(evidence.subject.probes):
        code = np.zeros(probe.num_envs, np.float32)
        for item in _of_actor(evidence.recording, actor_id):
            trajectory = item.trajectory
            length = len(trajectory.action)
            expected = expected_rows(probe, item.cycle * length, trajectory.action, code)
            failure = failure or first_difference(
                expected,
                trajectory.env_steps,
                what="trajectory.env_steps",
                axes=_ROW_AXES,
                place=item.place,
                tolerance=1e-6,
            )
            code = np.asarray(action_code(probe.spec.action_space, trajectory.action[-1]))
            count += length * probe.num_envs
    detail = f"equal observations, rewards, flags and actions in {count:,} rows"
    return passed_unless(failure, detail)


def states(evidence: Evidence) -> Answer:
    """Recompute `act` from the first row of each stream, and compare what the learner received."""
    subject = evidence.subject
    acted = jax.jit(lambda *args: unroll(subject.agent, *args))
    failure, count = None, 0
    for actor_id, start in enumerate(subject.start_states):
        state = start
        for item in _of_actor(evidence.recording, actor_id):
            action, extras, after = acted(item.networks, state, item.acted_rows)
            for what, axes, expected, got in (
                ("initial_state", ("env",), as_data(state), item.initial_state),
                ("trajectory.action", _ROW_AXES, action, item.trajectory.action),
                ("trajectory.extras", _ROW_AXES, extras, item.trajectory.extras),
                ("final_state", ("env",), as_data(after), item.final_state),
            ):
                failure = failure or first_difference(
                    expected,
                    got,
                    what=what,
                    axes=axes,
                    place=item.place,
                    tolerance=_MAX_ERROR,
                )
            state = after
            count += len(item.trajectory.action) * subject.run_spec.num_streams
    detail = f"equal actions, extras, initial and final states over {count:,} rows"
    return passed_unless(failure, detail)


def resets(evidence: Evidence) -> Answer:
    """Compare greedy acting with greedy acting from a new actor state at every reset.

    For the latter, each per-environment leaf is replaced by a new actor's where an episode begins.
    """
    subject = evidence.subject
    axes = env_axes(subject.agent, subject.run_spec)
    if all(axis < 0 for axis in jax.tree.leaves(axes)):
        return skipped("no leaf of the actor state is per environment")

    def without_reset(*args: Any) -> tuple[PyTree, PyTree]:
        return unroll(subject.agent, *args, greedy=True)[:2]

    def with_reset(networks: PyTree, state: ActorState, rows: PyTree) -> tuple[PyTree, PyTree]:
        return unroll(subject.agent, networks, state, rows, greedy=True, reset=(state, axes))[:2]

    both = jax.jit(lambda *args: (without_reset(*args), with_reset(*args)))
    states = jax.jit(functools.partial(states_before, subject.agent))
    failure = None
    for actor_id, start in enumerate(subject.start_states):
        items = _of_actor(evidence.recording, actor_id)[:2]
        if not items:
            continue
        rows = jax.tree.map(lambda *x: np.concatenate(x), *[item.acted_rows for item in items])
        got, expected = both(items[0].networks, start, rows)
        # A copy of the memory before the row is what `act` was given, not what it made of it.
        given = states(items[0].networks, start, rows)
        expected = expected[0], _without_copies(expected[1], got[1], given)
        got = got[0], _without_copies(got[1], got[1], given)
        for name, left, right in zip(("action", "extras"), expected, got, strict=True):
            failure = failure or first_difference(
                left,
                right,
                what=f"greedy act: {name}",
                axes=_ROW_AXES,
                place=f"actor {actor_id}",
                tolerance=_MAX_ERROR,
            )
    return passed_unless(failure, "in each episode, greedy acting equals a new actor's")


def _without_copies(extras: PyTree, got: PyTree, given: ActorState) -> PyTree:
    """Return the extras without the leaves that `act` copied from the actor state before each row.

    Args:
        extras: `[R, B, ...]`.
        got: the extras of the agent itself, in which copies are equal.
        given: the actor states before each row, `[R, ...]`.
    """
    arrays = [np.asarray(leaf) for leaf in jax.tree.leaves(given)]
    places = jax.tree_util.tree_leaves_with_path(got)
    copies = {
        path
        for path, leaf in places
        if any(leaf.shape == each.shape and np.array_equal(leaf, each) for each in arrays)
    }
    leaves = jax.tree_util.tree_leaves_with_path(extras)
    return {leaf_name(path): leaf for path, leaf in leaves if path not in copies}


def legal(evidence: Evidence) -> Answer:
    """Look for illegal actions, sampled and greedy; then change the masks that the loss gets."""
    subject, recording = evidence.subject, evidence.recording
    spec = subject.run_spec.environment
    if spec.action_mask is None:
        return skipped("the environment has no action masks")
    acted = jax.jit(functools.partial(unroll, subject.agent, greedy=True))
    for item in recording.trajectories:
        rows: PyTree = item.acted_rows
        state = from_data(item.initial_state, subject.start_states[0])
        greedy = np.asarray(acted(item.networks, state, rows)[0])
        for kind, action in (("sampled", item.trajectory.action), ("greedy", greedy)):
            illegal = (
                ~_is_legal(action, rows.action_mask, spec.action_space) & item.trajectory.valid
            )
            for row, env in np.argwhere(illegal)[:1]:
                return failed(
                    f"{kind} action ({item.place}, row {row}, env {env}): expected a legal action,"
                    f" with action_mask {rows.action_mask[row, env].astype(int)}, got"
                    f" {action[row, env]}"
                )
    if evidence.has_updates and evidence.loss.has_gradient:
        sensitivity = evidence.loss
        changed = [_with_legal_actions(item) for item in sensitivity.items]
        if sensitivity.greatest_effect(changed) <= sensitivity.rounding:
            others = Perturbation(field="extras", rows=is_valid)
            if not sensitivity.is_on_policy and sensitivity.has_effect(
                others.apply(sensitivity.items)
            ):
                reason = (
                    "the loss uses the extras, which may hold policies of legal actions, and not"
                    " the masks"
                )
                return unclear(reason)
            return failed(
                f"trajectory.env_steps.action_mask ({sensitivity.items[-1].place}, all rows):"
                " expected the loss to use it, since illegal actions have no probability and no"
                " value, got the same loss and gradients with all actions legal",
                "the loss takes policies or greatest values over illegal actions",
            )
    return passed(f"{len(recording.trajectories)} trajectories, sampled and greedy")


def _is_legal(action: np.ndarray, mask: np.ndarray, space: Any) -> np.ndarray:
    """Return `[T, B]`: whether every component of an action is legal."""
    sizes = np.atleast_1d(space.n if hasattr(space, "n") else space.nvec).reshape(-1)
    offset = (action - np.asarray(space.start)).reshape(*action.shape[:2], -1)
    index = offset + np.cumsum([0, *sizes[:-1]])
    return np.asarray(np.take_along_axis(mask, index, axis=-1).all(axis=-1))


def _with_legal_actions(item: RecordedTrajectory) -> RecordedTrajectory:
    return item.with_rows(action_mask=np.ones_like(item.trajectory.env_steps.action_mask))


def _of_actor(recording: Recording, actor_id: int) -> list[RecordedTrajectory]:
    return [item for item in recording.trajectories if item.actor_id == actor_id]


ROWS = Question(
    name="rows",
    ask=rows,
    property="update_experience gets the environment's rows",
    needs=Needs.RECORDING,
    perturbs="compares what the learner received with the probe's rows, given the actions",
    proof="every row of the probe has other values",
    expects="equal observations, rewards and flags",
    bound="1e-06, absolute and relative: a few float32 operations, fused and alone",
    likely_cause="a buffer was overwritten before the learner read it",
)

STATES = Question(
    name="states",
    ask=states,
    property="acting again gives the same actor states",
    needs=Needs.RECORDING,
    perturbs="acts again from the first row of each stream",
    proof="the same networks, rows and keys",
    expects="equal actions, extras, initial and final states",
    bound=(
        f"{_MAX_ERROR:g}, absolute and relative: XLA compiles this scan otherwise than the act "
        "cycle, and reorders sums"
    ),
    likely_cause="act depends on more than its arguments, or shard_actor_state reorders leaves",
)

RESETS = Question(
    name="resets",
    ask=resets,
    property="an episode begins without memory of the last",
    needs=Needs.RECORDING,
    perturbs=(
        "replaces the leaves of each environment by those of a new actor where an episode begins"
    ),
    proof="some leaf of the actor state is per environment",
    expects=("greedy actions and extras to stay; copies of the memory before a row do not count"),
    bound=f"{_MAX_ERROR:g}, absolute and relative: as for `states`",
    likely_cause="act does not reset its memory where is_first, before using the observation",
)

LEGAL = Question(
    name="legal",
    ask=legal,
    property="only legal actions are taken, and learned from",
    needs=Needs.RECORDING,
    perturbs="makes all actions legal in the rows that the loss gets",
    proof="the probe makes about half of the actions illegal",
    expects="legal actions, sampled and greedy; another loss with other masks",
    bound="exact for actions; for the loss, its rounding (see `rewards`)",
    likely_cause="act does not use env_step.action_mask",
)
