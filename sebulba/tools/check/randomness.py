"""Checks that nothing random is shared which should not be."""

from collections.abc import Iterable

import jax
import jax.numpy as jnp
import numpy as np

from sebulba.tools.check.recording import Recording
from sebulba.tools.check.result import CheckResult, as_numpy, is_key, judged, leaf_name, skipped
from sebulba.tools.check.subject import Subject, env_axes
from sebulba.types import ActorState, EnvStep, PyTree

ACTORS = "each actor has its own randomness"
ENVIRONMENTS = "each environment has its own randomness"
EXPLORATION = "exploration is set for each environment"

_STEPS = 256
# Fewer departures from an environment's most frequent action may coincide by chance.
_LEAST_DEPARTURES = 16


def check_randomness(subject: Subject, recording: Recording) -> list[CheckResult]:
    """Acts again and again from one row that begins an episode, and compares who chose what.

    All actors get the actor state of actor 0, but for what is random in their own.
    """
    axes = env_axes(subject.agent, subject.run_spec)
    row = _first_row(recording)
    networks = recording.trajectories[0].networks

    def choose(networks: PyTree, state: ActorState) -> PyTree:
        def step(state: ActorState, _: None) -> tuple[ActorState, PyTree]:
            action, _, state = subject.agent.act(networks, state, row, greedy=False)
            return state, action

        return jax.lax.scan(step, state, None, length=_STEPS)[1]

    choose = jax.jit(choose)
    first = subject.start_states[0]
    actions = [
        np.asarray(choose(networks, _with_randomness_of(state, first, axes)))
        for state in subject.start_states
    ]
    return [_judge_actors(actions), _judge_environments(actions[0])]


def _first_row(recording: Recording) -> EnvStep:
    """Returns a row `[B]` in which all environments have the same first observation."""
    env_steps = recording.trajectories[0].trajectory.env_steps
    return jax.tree.map(
        lambda leaf: jnp.broadcast_to(jnp.asarray(leaf[0, :1]), leaf[0].shape), env_steps
    )


def _with_randomness_of(state: ActorState, first: ActorState, axes: PyTree) -> ActorState:
    """Returns actor 0's state with the random keys of another actor.

    Keys are typed ones, and whatever is of no single environment and no float: those are settings.
    """

    def choose(own: jax.Array, of_first: jax.Array, axis: int) -> jax.Array:
        may_be_key = axis < 0 and not jnp.issubdtype(own.dtype, jnp.floating)
        return own if is_key(own) or may_be_key else of_first

    return jax.tree.map(choose, state, first, axes)


def _num_departures(actions: np.ndarray) -> np.ndarray:
    """Returns `[B]`: how often an action `[R, B, ...]` is not the environment's most frequent."""
    counts = []
    for env in range(actions.shape[1]):
        _, number = np.unique(actions[:, env], axis=0, return_counts=True)
        counts.append(len(actions) - number.max())
    return np.array(counts)


def _judge_actors(actions: list[np.ndarray]) -> CheckResult:
    if len(actions) < 2:
        return skipped(ACTORS, "the run has one actor")
    if _num_departures(actions[0]).sum() < _LEAST_DEPARTURES:
        return skipped(ACTORS, "acting is as good as deterministic")
    failure = None
    for one in range(len(actions)):
        for other in range(one + 1, len(actions)):
            if failure is None and np.array_equal(actions[one], actions[other]):
                failure = (
                    f"act's action, actors {one} and {other}: expected different draws from one"
                    f" observation, got the same in all of {_STEPS} steps and environments: is"
                    " init_actor_state's key in the actor state?"
                )
    return judged(ACTORS, failure, f"{len(actions)} actors differ on the same observations")


def _judge_environments(actions: np.ndarray) -> CheckResult:
    random = np.flatnonzero(_num_departures(actions) >= _LEAST_DEPARTURES)
    if len(random) < 2:
        return skipped(ENVIRONMENTS, "fewer than two environments act at random")
    failure = None
    for one, env in enumerate(random):
        for other in random[one + 1 :]:
            if failure is None and np.array_equal(actions[:, env], actions[:, other]):
                failure = (
                    f"act's action, actor 0, envs {env} and {other}: expected different draws from"
                    f" one observation, got the same in all of {_STEPS} steps"
                )
    return judged(ENVIRONMENTS, failure, f"{len(random)} environments of actor 0 differ")


def check_exploration(subject: Subject) -> CheckResult:
    """Looks at the floats of new actor states: what differs among actors has to among environments.

    Actors have the same networks and have seen nothing, so a float that differs is a setting.
    """
    states = [as_numpy(state) for state in subject.start_states]
    if len(states) < 2:
        return skipped(EXPLORATION, "the run has one actor")
    axes = jax.tree.leaves(env_axes(subject.agent, subject.run_spec))
    failure, settings = None, []
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(states[0])]
    for path, axis, *leaves in zip(paths, axes, *map(jax.tree.leaves, states), strict=True):
        if not np.issubdtype(leaves[0].dtype, np.floating):
            continue
        name = leaf_name("actor state", path)
        differ = not all(np.array_equal(leaf, leaves[0]) for leaf in leaves)
        if axis < 0 and differ:
            got = f"a number for each actor: {_listing(leaves)}"
        elif axis >= 0 and leaves[0].shape[axis] > 1:
            varies = any(np.ptp(np.moveaxis(leaf, axis, 0), axis=0).any() for leaf in leaves)
            if differ and not varies:
                got = f"one for each actor: {_listing(leaf.reshape(-1)[:1] for leaf in leaves)}"
            elif varies and not differ:
                got = f"the same ones for every actor: {_listing(leaves[:1])}"
            else:
                settings += [name] if varies else []
                continue
        else:
            continue
        failure = failure or (
            f"{name}, actors 0 … {len(leaves) - 1}, before row 0: expected a number for each"
            f" environment of all actors, got {got}"
        )
    if failure is None and not settings:
        return skipped(EXPLORATION, "no float of a new actor state differs among environments")
    return judged(EXPLORATION, failure, f"{', '.join(settings)}: different for all")


def _listing(leaves: Iterable[np.ndarray]) -> str:
    return ", ".join(
        np.array2string(np.asarray(leaf).reshape(-1)[:8], precision=3) for leaf in leaves
    )
