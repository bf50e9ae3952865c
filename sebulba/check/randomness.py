"""Checks that actors and environments share no random numbers and no exploration settings."""

import itertools
from collections.abc import Iterable

import jax
import jax.numpy as jnp
import numpy as np

from sebulba.check.evidence import Evidence
from sebulba.check.question import Needs, Question
from sebulba.check.recording import Recording
from sebulba.check.result import Answer, as_numpy, passed_unless, skipped, unclear
from sebulba.check.subject import env_axes
from sebulba.pytree import is_key, leaf_name
from sebulba.types import ActorState, EnvStep, Networks, PyTree

_ONE_ACTOR = "the agent allows only one actor, so there is none to compare it with"
_NUM_STEPS = 256
# Two environments whose actions vary less than this may coincide by chance.
_MIN_OTHER_STEPS = 16  # with another action than the most frequent one


def actor_keys(evidence: Evidence) -> Answer:
    """Compare the actions of actors on one observation."""
    actions = evidence.shared(_actions)
    if len(actions) < 2:
        return skipped(_ONE_ACTOR)
    if _num_departures(actions[0]).sum() < _MIN_OTHER_STEPS:
        return skipped("the agent acts deterministically, or nearly so")
    detail = f"{len(actions)} actors act differently on the same observation"
    return passed_unless(_first_equal("actors", dict(enumerate(actions))), detail)


def env_keys(evidence: Evidence) -> Answer:
    """Compare the actions of actor 0's environments on one observation.

    Noise of weights may be that of all environments; with weights of 0 it has no effect.
    """
    actions = evidence.shared(_actions)[0]
    random = np.flatnonzero(_num_departures(actions) >= _MIN_OTHER_STEPS)
    if len(random) < 2:
        return skipped("fewer than two environments of actor 0 act at random")
    detail = f"{len(random)} environments of actor 0 act differently on the same observation"
    failure = _first_equal("actor 0, envs", {int(env): actions[:, env] for env in random})
    if failure is not None:
        nothing = jax.tree.map(np.zeros_like, evidence.recording.trajectories[0].networks)
        if not _num_departures(_actions_of(evidence, nothing)[0]).any():
            return unclear("environments act alike, by noise of the networks' weights")
    return passed_unless(failure, detail)


def _actions(evidence: Evidence) -> list[np.ndarray]:
    return _actions_of(evidence, evidence.recording.trajectories[0].networks)


def _actions_of(evidence: Evidence, networks: Networks) -> list[np.ndarray]:
    """Return each actor's actions `[R, B, ...]` in many steps on one first observation.

    Every actor gets the actor state of actor 0, with its own random keys.
    """
    subject, recording = evidence.subject, evidence.recording
    axes = env_axes(subject.agent, subject.run_spec)
    row = first_row(recording)

    def choose(networks: PyTree, state: ActorState) -> PyTree:
        def step(state: ActorState, _: None) -> tuple[ActorState, PyTree]:
            action, _, state = subject.agent.act(networks, state, row, greedy=False)
            return state, action

        return jax.lax.scan(step, state, None, length=_NUM_STEPS)[1]

    choose = jax.jit(choose)
    first = subject.start_states[0]
    return [
        np.asarray(choose(networks, with_randomness_of(state, first, axes)))
        for state in subject.start_states
    ]


def first_row(recording: Recording) -> EnvStep:
    """Return a row `[B]` in which all environments have the same first observation."""
    env_steps = recording.trajectories[0].trajectory.env_steps
    return jax.tree.map(
        lambda leaf: jnp.broadcast_to(jnp.asarray(leaf[0, :1]), leaf[0].shape), env_steps
    )


def with_randomness_of(state: ActorState, first: ActorState, axes: PyTree) -> ActorState:
    """Return actor 0's state with the random keys of another actor.

    Keys are typed keys, and leaves that are neither per environment nor floats: raw keys, counters.
    """

    def choose(own: jax.Array, of_first: jax.Array, axis: int) -> jax.Array:
        may_be_key = axis < 0 and not jnp.issubdtype(own.dtype, jnp.floating)
        return own if is_key(own) or may_be_key else of_first

    return jax.tree.map(choose, state, first, axes)


def _num_departures(actions: np.ndarray) -> np.ndarray:
    """Return `[B]`: in how many of R steps an action is not its environment's most frequent one."""
    counts = []
    for env in range(actions.shape[1]):
        _, number = np.unique(actions[:, env], axis=0, return_counts=True)
        counts.append(len(actions) - number.max())
    return np.array(counts)


def _first_equal(what: str, actions: dict[int, np.ndarray]) -> str | None:
    """Describe the first two actors or environments with equal actions; None: all differ."""
    for one, other in itertools.combinations(actions, 2):
        if np.array_equal(actions[one], actions[other]):
            return (
                f"{what} {one} and {other}: expected different actions for the same observation,"
                f" got the same in all {_NUM_STEPS} steps"
            )
    return None


def exploration(evidence: Evidence) -> Answer:
    """Check that settings which differ among actors, such as ε, also differ among environments.

    New actors have the same networks and no experience, so a float that differs is a setting.
    """
    subject = evidence.subject
    states = [as_numpy(state) for state in subject.start_states]
    if len(states) < 2:
        return skipped(_ONE_ACTOR)
    axes = jax.tree.leaves(env_axes(subject.agent, subject.run_spec))
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(states[0])]
    failure, settings = None, []
    for path, axis, *leaves in zip(paths, axes, *map(jax.tree.leaves, states), strict=True):
        if not jnp.issubdtype(leaves[0].dtype, jnp.floating):
            continue
        if axis >= 0 and leaves[0].shape[axis] == 1:
            continue
        name = leaf_name(path, "actor state")
        over_actors = not all(np.array_equal(leaf, leaves[0]) for leaf in leaves)
        over_envs = axis >= 0 and any(np.ptp(leaf, axis=axis).any() for leaf in leaves)
        if over_actors == over_envs:
            settings += [name] if over_envs else []
            continue
        if over_envs:
            got = f"the same values for every actor: {_listing(leaves[:1])}"
        else:
            firsts = leaves if axis < 0 else [leaf.reshape(-1)[:1] for leaf in leaves]
            got = f"one value per actor: {_listing(firsts)}"
        failure = failure or (
            f"{name} (actors 0 … {len(leaves) - 1}, before row 0): expected a different value for"
            f" each environment of each actor, got {got}"
        )
    if failure is None and not settings:
        return skipped("no setting in a new actor state differs among environments")
    return passed_unless(failure, f"{', '.join(settings)}: different in each environment")


def _listing(leaves: Iterable[np.ndarray]) -> str:
    return ", ".join(
        np.array2string(np.asarray(leaf).reshape(-1)[:8], precision=3) for leaf in leaves
    )


EXPLORATION = Question(
    name="exploration",
    ask=exploration,
    property="each environment has its own exploration",
    perturbs="compares numbers in new actor states over actors and environments",
    proof="two actors, and two environments each",
    expects="a number that differs among actors to differ among environments",
    bound="exact: settings are copied",
    likely_cause="init_actor_state does not use actor_id · num_envs + environment",
)

ACTOR_KEYS = Question(
    name="actor-keys",
    ask=actor_keys,
    property="each actor draws its own random numbers",
    needs=Needs.RECORDING,
    perturbs="gives actor 0's state the keys of each actor, on one observation",
    proof=f"{_MIN_OTHER_STEPS} of {_NUM_STEPS} actions are not the most frequent one",
    expects="other actions of each actor",
    bound=(
        f"exact: with {_MIN_OTHER_STEPS} rare actions, two actors coincide with a probability "
        "below 1e-9"
    ),
    likely_cause="init_actor_state does not store its key in the actor state",
)

ENV_KEYS = Question(
    name="env-keys",
    ask=env_keys,
    property="each environment draws its own random numbers",
    needs=Needs.RECORDING,
    perturbs="compares the environments of actor 0 on one observation",
    proof="as `actor-keys`, for two environments",
    expects="other actions of each environment; noise of weights may be shared",
    bound="exact: as `actor-keys`",
    likely_cause="act draws one random number for all environments",
)
