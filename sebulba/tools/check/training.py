"""Short trainings on recorded trajectories with other rewards, for checks of what learning does."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sebulba.tools.check.acting import unroll
from sebulba.tools.check.capture import as_data, from_data
from sebulba.tools.check.recording import RecordedTrajectory
from sebulba.tools.check.result import as_numpy, is_key
from sebulba.tools.check.sampling import is_distribution
from sebulba.tools.check.sensitivity import LossSensitivity
from sebulba.tools.check.subject import Subject
from sebulba.types import EnvStep, Experience, Networks, PyTree

_NOISE = (1.0, 10.0)  # added to parameters
_SETTLING_UPDATES = 2_000  # in which a moving average of rate 0.005 arrives
# To get somewhere in few updates.
_SETTINGS: dict[str, Any] = {"learning_rate": 0.01, "target_period": 10}
_DRAWS = 8  # losses, whose gradients are averaged
_MOST_WORK = 1e9  # parameters times elements of an observation

Items = Sequence[RecordedTrajectory]
RewardOf = Callable[[RecordedTrajectory], Any]
"""Rewards `[T, B]` of a trajectory's actions, or one number for all of them."""


def too_large(subject: Subject, sensitivity: LossSensitivity) -> str | None:
    """Return why a training of the agent would take too long; None: it does not."""
    num_parameters = sum(leaf.size for leaf in jax.tree.leaves(sensitivity.networks))
    observation = jax.tree.leaves(subject.run_spec.environment.observation)
    if num_parameters * sum(leaf.size for leaf in observation) <= _MOST_WORK:
        return None
    return f"{num_parameters:,} parameters and images take too long; check a smaller task"


class Trainer:
    """An agent on one learner device, with other settings, and the recorded trajectories."""

    def __init__(self, subject: Subject, sensitivity: LossSensitivity, **settings: Any):
        """Build the agent.

        Args:
            subject: the run.
            sensitivity: whose trajectories and networks are used.
            settings: of the agent; those that it does not have are ignored.
        """
        self.subject, self.sensitivity = subject, sensitivity
        self._agent, self._run_spec = subject.agent_on(1, **(_SETTINGS | settings))
        self._optimize = jax.jit(self._agent.optimize)
        self._ingest = jax.jit(self._agent.update_experience)
        self._loss = jax.jit(jax.value_and_grad(self._agent.loss, has_aux=True))
        self._state = subject.start_states[0]

        def act(networks: Networks, state: PyTree, rows: EnvStep, greedy: bool) -> Any:
            networks = subject.agent.actor_networks(networks)
            return unroll(subject.agent, networks, state, rows, greedy=greedy)

        self._act = jax.jit(act, static_argnums=3)

    @property
    def place(self) -> str:
        """Name the actor, act cycle and rows of the newest trajectory, for messages."""
        item = self.sensitivity.items[-1]
        return f"{item.place}, rows 0 … {len(item.trajectory.action)}"

    def acted(self, networks: Networks, *, greedy: bool = True) -> tuple[np.ndarray, list[Any]]:
        """Return actions `[T, B, ...]` on recorded rows, and the distributions in the extras."""
        rows = _acted_rows(self.sensitivity.items[-1])
        action, extras, _ = self._act(networks, self._state, rows, greedy)
        leaves = jax.tree.leaves(extras, is_leaf=is_distribution)
        return np.asarray(action), [leaf for leaf in leaves if is_distribution(leaf)]

    def spread(self, networks: Networks) -> float:
        """Return the mean distance between sampled and greedy actions."""
        sampled, greedy = (self.acted(networks, greedy=each)[0] for each in (False, True))
        return float(np.mean(np.abs(sampled - greedy)))

    @functools.cached_property
    def is_acting(self) -> list[bool]:
        """Whether another value of each leaf changes greedy actions or their distributions."""
        leaves, structure = jax.tree.flatten(self.sensitivity.networks)
        before = _arrays(self.acted(self.sensitivity.networks))

        def changes(index: int, size: float) -> bool:
            others = [*leaves]
            others[index] = with_noise(leaves[index], np.random.default_rng(0), size)
            after = _arrays(self.acted(jax.tree.unflatten(structure, others)))
            return not all(map(np.array_equal, before, after))

        # Great noise as well: a small one may leave every greatest action value the greatest.
        return [any(changes(index, size) for size in _NOISE) for index in range(len(leaves))]

    def acted_again(self, networks: Networks, items: Items) -> list[RecordedTrajectory]:
        """Return the trajectories with the actions and extras of these networks."""

        def act(item: RecordedTrajectory) -> RecordedTrajectory:
            state = from_data(item.initial_state, self._state)
            action, extras, final = self._act(networks, state, _acted_rows(item), False)
            trajectory = dataclasses.replace(
                item.trajectory, action=np.asarray(action), extras=as_numpy(extras)
            )
            return dataclasses.replace(
                item, trajectory=trajectory, final_state=as_numpy(as_data(final))
            )

        return [act(item) for item in items]

    def experience(self, networks: Networks, items: Items) -> Experience:
        """Return the agent's experience after these trajectories."""
        experience = self._agent.init_experience(networks, self._run_spec.num_envs)
        for item in items[self.sensitivity.num_unlearned :]:
            experience = self._ingest(
                networks,
                experience,
                from_data(item.initial_state, self._state),
                from_data(item.final_state, self._state),
                jax.tree.map(jnp.asarray, item.trajectory),
                jnp.int32(item.actor_id),
            )
        return experience

    def gradients(self, networks: Networks, experience: Experience, step: int = 0) -> Any:
        """Return the gradients of one loss, and the experience after it."""
        key = jax.random.fold_in(jax.random.key(self.subject.config.seed), step)
        (_, (experience, _)), grads = self._loss(networks, experience, key, jnp.int32(step))
        return grads, experience

    def mean_gradients(self, networks: Networks, items: Items) -> list[np.ndarray]:
        """Return the leaves of gradients, averaged over several losses."""
        experience = self.experience(networks, items)
        draws = [_arrays(self.gradients(networks, experience, step)[0]) for step in range(_DRAWS)]
        return [np.mean(each, axis=0) for each in zip(*draws, strict=True)]

    def train(
        self,
        items: Items,
        start: Networks | None = None,
        *,
        num_updates: int,
        leaves: Sequence[bool] | None = None,
    ) -> Networks:
        """Return networks after updates.

        Args:
            items: the trajectories.
            start: networks; None: those at the end of the recording.
            num_updates: optimisation steps.
            leaves: which leaves may change; None: all.
        """
        networks = self.sensitivity.networks if start is None else start
        experience = self.experience(networks, items)
        opt_state = self._agent.init_opt_state(networks)
        for step in range(num_updates):
            grads, experience = self.gradients(networks, experience, step)
            after, opt_state = self._optimize(networks, opt_state, grads, experience)
            networks = after if leaves is None else chosen(leaves, after, networks)
        return networks

    def settled(self, networks: Networks, items: Items, leaves: Sequence[bool]) -> Networks:
        """Return networks after many updates without gradients: target networks follow.

        Args:
            networks: before.
            items: the trajectories of the experience that `optimize` gets.
            leaves: which leaves may change.
        """
        grads, experience = self.gradients(networks, self.experience(networks, items))
        pairs = zip(leaves, _arrays(grads), strict=True)
        is_target = [may_change and not np.any(grad) for may_change, grad in pairs]
        if not any(is_target):
            return networks
        nothing = jax.tree.map(jnp.zeros_like, grads)

        def update(_: int, carry: tuple) -> tuple:
            return self._agent.optimize(*carry, nothing, experience)

        def follow(networks: Networks) -> Networks:
            start = networks, self._agent.init_opt_state(networks)
            return jax.lax.fori_loop(0, _SETTLING_UPDATES, update, start)[0]

        return chosen(is_target, jax.jit(follow)(networks), networks)


def with_noise(leaf: jax.Array, rng: np.random.Generator, size: float = 1.0) -> jax.Array:
    """Return a leaf with normal noise of this size; random keys are returned unchanged."""
    if is_key(leaf):
        return leaf
    return leaf + jnp.asarray(rng.normal(0.0, size, leaf.shape), leaf.dtype)


def chosen(leaves: Iterable[bool], new: PyTree, old: PyTree) -> PyTree:
    """Return a pytree with the chosen leaves of one, and the other leaves of the other."""
    pairs = zip(leaves, jax.tree.leaves(new), jax.tree.leaves(old), strict=True)
    return jax.tree.unflatten(
        jax.tree.structure(old), [a if is_new else b for is_new, a, b in pairs]
    )


def in_steps(items: Items, reward: RewardOf) -> list[RecordedTrajectory]:
    """Return the trajectories as episodes of one step, with the rewards of actions."""

    def flags(item: RecordedTrajectory) -> tuple[np.ndarray, np.ndarray]:
        rows = item.trajectory.env_steps.reward
        number = item.cycle * (len(rows) - 1) + np.arange(len(rows))
        is_last = np.broadcast_to((number % 2 == 1)[:, None], rows.shape)
        return is_last, ~is_last

    return _with_rows(items, reward, flags)


def without_ends(items: Items, reward: RewardOf) -> list[RecordedTrajectory]:
    """Return the trajectories as episodes that never end, with the rewards of actions."""

    def flags(item: RecordedTrajectory) -> tuple[np.ndarray, np.ndarray]:
        nowhere = np.zeros_like(item.trajectory.env_steps.is_first)
        is_first = nowhere.copy()
        is_first[0] = item.cycle == 0
        return nowhere, is_first

    return _with_rows(items, reward, flags)


def mean_component(action: np.ndarray) -> np.ndarray:
    """Return the mean component `[T, B]` of continuous actions, clipped to ±1."""
    return np.clip(action, -1.0, 1.0).reshape(*action.shape[:2], -1).mean(axis=-1)


def _with_rows(
    items: Items,
    reward: RewardOf,
    flags: Callable[[RecordedTrajectory], tuple[np.ndarray, np.ndarray]],
) -> list[RecordedTrajectory]:
    """Replace rewards, and the flags `terminated` and `is_first`."""
    changed = []
    last: dict[int, np.ndarray] = {}  # A row 0 ends the last transition of the trajectory before.
    for item in items:
        rows = item.trajectory.env_steps
        terminated, is_first = flags(item)
        rewards = np.empty_like(rows.reward)
        rewards[1:] = reward(item)
        rewards[0] = last.get(item.actor_id, rewards[1])
        last[item.actor_id] = rewards[-1]
        env_steps = dataclasses.replace(
            rows,
            reward=np.where(is_first, np.float32(0.0), rewards),
            terminated=terminated,
            truncated=np.zeros_like(terminated),
            is_first=is_first,
        )
        trajectory = dataclasses.replace(item.trajectory, env_steps=env_steps)
        changed.append(dataclasses.replace(item, trajectory=trajectory))
    return changed


def _acted_rows(item: RecordedTrajectory) -> EnvStep:
    return jax.tree.map(lambda leaf: jnp.asarray(leaf[:-1]), item.trajectory.env_steps)


def _arrays(tree: PyTree) -> list[np.ndarray]:
    return jax.tree.leaves(as_numpy(tree))
