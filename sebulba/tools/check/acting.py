"""Checks of what the actors give: rows, actor states, resets."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sebulba.tools.check.capture import as_data
from sebulba.tools.check.probe import action_code, expected_rows
from sebulba.tools.check.recording import RecordedTrajectory, Recording
from sebulba.tools.check.result import CheckResult, first_difference, judged, skipped
from sebulba.tools.check.subject import Subject, env_axes
from sebulba.types import ActorState, PyTree

ALIGNMENT = "rows reach update_experience as the environment gave them"
REPLAYED = "actor states are those of a fresh replay"
FORGETTING = "a reset makes acting forget the past"

# The replay is another program than the act cycle: its sums may be in another order.
_TOLERANCE = 1e-4
_ROW_AXES = ("row", "env")


def check_alignment(subject: Subject, recording: Recording) -> CheckResult:
    """Compares every row with what the probe gave for the actions of the trajectory."""
    failure, rows = None, 0
    for actor_id, probe in enumerate(subject.probes):
        code = np.zeros(probe.num_envs, np.float32)
        for item in _of_actor(recording, actor_id):
            trajectory = item.trajectory
            length = len(trajectory.action)
            expected = expected_rows(probe, item.cycle * length, trajectory.action, code)
            failure = failure or first_difference(
                expected,
                trajectory.env_steps,
                what=f"trajectory.env_steps ({item.place})",
                axes=_ROW_AXES,
                tolerance=1e-6,
            )
            code = np.asarray(action_code(probe.spec.action_space, trajectory.action[-1]))
            rows += length * probe.num_envs
    return judged(ALIGNMENT, failure, f"observations, rewards, flags and actions of {rows:,} rows")


def check_states(subject: Subject, recording: Recording) -> CheckResult:
    """Acts again from the first row of each stream, and compares all that was handed over."""
    unroll = jax.jit(lambda *args: _unroll(subject.agent, *args))
    failure, rows = None, 0
    for actor_id, start in enumerate(subject.start_states):
        state = start
        for item in _of_actor(recording, actor_id):
            action, extras, after = unroll(item.networks, state, _acted_rows(item))
            for what, axes, expected, got in (
                ("initial_state", ("env",), as_data(state), item.initial_state),
                ("trajectory.action", _ROW_AXES, action, item.trajectory.action),
                ("trajectory.extras", _ROW_AXES, extras, item.trajectory.extras),
                ("final_state", ("env",), as_data(after), item.final_state),
            ):
                failure = failure or first_difference(
                    expected, got, what=f"{what} ({item.place})", axes=axes, tolerance=_TOLERANCE
                )
            state = after
            rows += len(item.trajectory.action) * subject.run_spec.num_envs
    detail = f"actions, extras, initial and final states over {rows:,} rows"
    return judged(REPLAYED, failure, detail)


def check_forgetting(subject: Subject, recording: Recording) -> CheckResult:
    """Acts greedily twice, once with a new actor state at every reset: nothing may differ.

    Where an episode begins, each per-environment leaf is replaced by that of a new actor.
    """
    axes = env_axes(subject.agent, subject.run_spec)
    if all(axis < 0 for axis in jax.tree.leaves(axes)):
        return skipped(FORGETTING, "the actor state has nothing of single environments")

    def unroll(*args: Any) -> tuple[PyTree, PyTree]:
        return _unroll(subject.agent, *args, greedy=True)[:2]

    def unroll_anew(networks: PyTree, state: ActorState, rows: PyTree) -> tuple[PyTree, PyTree]:
        return _unroll(subject.agent, networks, state, rows, greedy=True, anew=(state, axes))[:2]

    both = jax.jit(lambda *args: (unroll(*args), unroll_anew(*args)))
    failure = None
    for actor_id, start in enumerate(subject.start_states):
        items = _of_actor(recording, actor_id)[:2]
        if not items:
            continue
        rows = jax.tree.map(lambda *x: np.concatenate(x), *[_acted_rows(item) for item in items])
        got, expected = both(items[0].networks, start, rows)
        for name, left, right in zip(("action", "extras"), expected, got, strict=True):
            failure = failure or first_difference(
                left,
                right,
                what=f"act's {name}, greedy (actor {actor_id})",
                axes=_ROW_AXES,
                tolerance=1e-5,
            )
    if failure is not None:
        failure += "; is all memory reset where is_first, before the observation is consumed?"
    return judged(FORGETTING, failure, "greedy acting is that of a new actor in each episode")


def _of_actor(recording: Recording, actor_id: int) -> list[RecordedTrajectory]:
    return [item for item in recording.trajectories if item.actor_id == actor_id]


def _acted_rows(item: RecordedTrajectory) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[:-1], item.trajectory.env_steps)


def _unroll(
    agent: Any,
    networks: PyTree,
    state: ActorState,
    env_steps: PyTree,
    *,
    greedy: bool = False,
    anew: tuple[ActorState, PyTree] | None = None,
) -> tuple[PyTree, PyTree, ActorState]:
    """Returns actions and extras `[R, B, ...]`, and the state after the last row.

    Args:
        agent: whose `act`.
        networks: of the actor.
        state: before the first row.
        env_steps: `[R, B, ...]`.
        greedy: as `act` takes it.
        anew: a new actor's state and its axes of environments, to begin each episode with.
    """

    def step(state: ActorState, env_step: Any) -> tuple[ActorState, tuple[PyTree, PyTree]]:
        if anew is not None:
            state = _renew(state, *anew, env_step.is_first)
        action, extras, state = agent.act(networks, state, env_step, greedy=greedy)
        return state, (action, extras)

    state, (action, extras) = jax.lax.scan(step, state, jax.tree.map(jnp.asarray, env_steps))
    return action, extras, state


def _renew(state: ActorState, new: ActorState, axes: PyTree, is_first: jax.Array) -> ActorState:
    def renew(leaf: jax.Array, new: jax.Array, axis: int) -> jax.Array:
        if axis < 0:
            return leaf
        shape = [1] * leaf.ndim
        shape[axis] = is_first.shape[0]
        return jnp.where(is_first.reshape(shape), new, leaf)

    return jax.tree.map(renew, state, new, axes)
