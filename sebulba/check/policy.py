"""The acting of an agent on recorded rows, as a function of its networks."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from sebulba.check.capture import as_data, from_data
from sebulba.check.recording import RecordedTrajectory
from sebulba.check.result import as_numpy
from sebulba.check.subject import Subject
from sebulba.check.trees import with_leaf
from sebulba.pytree import is_key, leaf_name
from sebulba.toolkit.distributions import Categorical, DiagonalGaussian, MultiCategorical
from sebulba.types import ActorState, Array, EnvStep, Networks, PyTree

_LOG_PROB_NAMES = ("log_prob", "logprob", "logp")
_NOISE_SIZES = (1.0, 10.0)  # of parameters, which are about 1 or less
MIN_CHANGE_OF_ACTING = 1e-4
"""Of an output, relative to the greatest of its leaf.

A hundred times the rounding of a sum in float32: a constant that a LayerNorm removes, or a bias of
the keys of attention, changes outputs by rounding.
"""


class Policy:
    """Actions on the rows of a recorded trajectory, and which networks they depend on."""

    def __init__(self, subject: Subject, networks: Networks, item: RecordedTrajectory):
        """Compile the acting.

        Args:
            subject: the run.
            networks: the learner's, around which `is_acting` looks.
            item: whose rows `acted` uses.
        """
        self._networks, self._rows = networks, item.acted_rows
        self._state = subject.start_states[0]
        self._space = subject.run_spec.environment.action_space

        def act(networks: Networks, state: PyTree, rows: EnvStep, greedy: bool) -> Any:
            networks = subject.agent.actor_networks(networks)
            return unroll(subject.agent, networks, state, rows, greedy=greedy)

        self._act = jax.jit(act, static_argnums=3)

    def acted(self, networks: Networks, *, greedy: bool = True) -> tuple[np.ndarray, list[Any]]:
        """Return actions `[T, B, ...]`, and the policies in the extras."""
        action, extras, _ = self._act(networks, self._state, self._rows, greedy)
        return np.asarray(action), [*policies_of(extras, action, self._space).values()]

    def spread(self, networks: Networks) -> float:
        """Return the mean distance between sampled and greedy actions."""
        sampled, greedy = (self.acted(networks, greedy=each)[0] for each in (False, True))
        return float(np.mean(np.abs(sampled - greedy)))

    @functools.cached_property
    def is_acting(self) -> list[bool]:
        """Whether another value of each leaf changes greedy actions or their distributions."""
        num_leaves = len(jax.tree.leaves(self._networks))
        return [self.is_used_in_acting(index, greedy=True) for index in range(num_leaves)]

    def is_used_in_acting(self, index: int, *, greedy: bool) -> bool:
        """Whether another value of a leaf changes actions or their distributions, with equal keys.

        Args:
            index: of the leaf.
            greedy: of greedy acting; else of sampled, which the scale of a noise changes too.
        """
        before = jax.tree.leaves(as_numpy(self.acted(self._networks, greedy=greedy)))

        def changes(size: float) -> bool:
            noise = functools.partial(with_noise, rng=np.random.default_rng(0), size=size)
            acted = self.acted(with_leaf(self._networks, index, noise), greedy=greedy)
            return differs(before, jax.tree.leaves(as_numpy(acted)))

        # Great noise as well: a small one may leave every greatest action value the greatest.
        return any(map(changes, _NOISE_SIZES))

    def acted_again(
        self, networks: Networks, items: Sequence[RecordedTrajectory]
    ) -> list[RecordedTrajectory]:
        """Return the trajectories with the actions and extras of these networks."""

        def act(item: RecordedTrajectory) -> RecordedTrajectory:
            state = from_data(item.initial_state, self._state)
            action, extras, final = self._act(networks, state, item.acted_rows, False)
            acted = item.with_trajectory(action=np.asarray(action), extras=as_numpy(extras))
            return dataclasses.replace(acted, final_state=as_numpy(as_data(final)))

        return [act(item) for item in items]


def differs(before: Sequence[np.ndarray], after: Sequence[np.ndarray]) -> bool:
    """Whether an array differs by more than rounding; integers and keys are exact."""

    def is_other(one: np.ndarray, other: np.ndarray) -> bool:
        if not jnp.issubdtype(one.dtype, jnp.inexact):
            return not np.array_equal(one, other)
        # Illegal actions have −∞ in both.
        is_number = np.isfinite(one) & np.isfinite(other)
        if not np.array_equal(one[~is_number], other[~is_number], equal_nan=True):
            return True
        size = max(float(np.max(np.abs(one[is_number]), initial=0.0)), 1e-6)
        gap = float(np.max(np.abs(one[is_number] - other[is_number]), initial=0.0))
        return gap > MIN_CHANGE_OF_ACTING * size

    return any(is_other(*pair) for pair in zip(before, after, strict=True))


def is_distribution(node: Any) -> bool:
    """Whether a node of a pytree has the methods of a `Distribution`."""
    return all(hasattr(node, name) for name in ("log_prob", "mode", "sample"))


def policies_of(extras: PyTree, action: Array, space: gymnasium.Space) -> dict[tuple, Any]:
    """Return the distributions over actions in the extras, by path.

    Those of `sebulba.toolkit.distributions` have the shapes of the action space. Others of them are
    distributions of something else, such as returns, and are left out.

    Args:
        extras: of the actions.
        action: `[..., B, *space.shape]`.
        space: the action space.
    """

    def is_policy(node: Any) -> bool:
        if isinstance(node, Categorical):
            is_discrete = isinstance(space, gymnasium.spaces.Discrete)
            return is_discrete and node.logits.shape == (*action.shape, space.n)
        if isinstance(node, MultiCategorical):
            shapes = [choice.logits.shape for choice in node.choices]
            is_discrete = isinstance(space, gymnasium.spaces.MultiDiscrete)
            return is_discrete and shapes == [(*action.shape[:-1], n) for n in space.nvec.flat]
        if isinstance(node, DiagonalGaussian):
            return node.mean.shape == action.shape
        return is_distribution(node)

    nodes = jax.tree_util.tree_leaves_with_path(extras, is_leaf=is_distribution)
    return {path: node for path, node in nodes if is_policy(node)}


def is_log_prob(path: tuple, leaf: Any, shape: tuple[int, ...]) -> bool:
    """Whether a leaf has this shape, and a name of a log-probability."""
    name = leaf_name(path).lower()
    return np.shape(leaf) == shape and any(word in name for word in _LOG_PROB_NAMES)


def with_noise(leaf: jax.Array, rng: np.random.Generator, size: float = 1.0) -> jax.Array:
    """Return a leaf with normal noise of this size; random keys are returned unchanged."""
    if is_key(leaf):
        return leaf
    return leaf + jnp.asarray(rng.normal(0.0, size, leaf.shape), leaf.dtype)


def unroll(
    agent: Any,
    networks: PyTree,
    state: ActorState,
    env_steps: PyTree,
    *,
    greedy: bool = False,
    reset: tuple[ActorState, PyTree] | None = None,
) -> tuple[PyTree, PyTree, ActorState]:
    """Return actions and extras `[R, B, ...]`, and the actor state after the last row.

    Args:
        agent: the agent that acts.
        networks: the actor's networks.
        state: the actor state before the first row.
        env_steps: `[R, B, ...]`.
        greedy: passed to `act`.
        reset: a new actor's state and its environment axes, to begin each episode with; None:
            leave resets to `act`.
    """

    def step(state: ActorState, env_step: Any) -> tuple[ActorState, tuple[PyTree, PyTree]]:
        if reset is not None:
            state = _reset(state, *reset, env_step.is_first)
        action, extras, state = agent.act(networks, state, env_step, greedy=greedy)
        return state, (action, extras)

    state, (action, extras) = jax.lax.scan(step, state, jax.tree.map(jnp.asarray, env_steps))
    return action, extras, state


def states_before(agent: Any, networks: PyTree, state: ActorState, env_steps: PyTree) -> PyTree:
    """Return the actor states `[R, ...]` that greedy acting gets, random keys as their data."""

    def step(state: ActorState, env_step: Any) -> tuple[ActorState, PyTree]:
        _, _, after = agent.act(networks, state, env_step, greedy=True)
        return after, as_data(state)

    return jax.lax.scan(step, state, jax.tree.map(jnp.asarray, env_steps))[1]


def _reset(state: ActorState, new: ActorState, axes: PyTree, is_first: jax.Array) -> ActorState:
    def reset(leaf: jax.Array, new: jax.Array, axis: int) -> jax.Array:
        if axis < 0:
            return leaf
        shape = [1] * leaf.ndim
        shape[axis] = is_first.shape[0]
        return jnp.where(is_first.reshape(shape), new, leaf)

    return jax.tree.map(reset, state, new, axes)
