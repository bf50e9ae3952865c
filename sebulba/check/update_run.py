"""Updates as the check takes them, and which leaves of the networks they change and use."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sebulba.check.evidence import Evidence
from sebulba.check.result import as_numpy, is_equal
from sebulba.check.sensitivity import ATTEMPTS
from sebulba.pytree import leaf_name
from sebulba.types import Clock, Experience, Networks, PyTree

TARGET_PERIOD_UPDATES = 3
SHIFT_OF_PARAMETERS = 0.37
MIN_UPDATES = 8
_MAX_UPDATES = 256  # of a cycle; the defaults of continuous tasks have 160
_LEARNING_RATE = 0.01  # a schedule may be at 0
_DISCOUNT = 0.9  # instead of 0, with which no target network is in use


@dataclasses.dataclass(frozen=True, eq=False)
class FirstUpdate:
    """The arguments and the result of `optimize` in the first update."""

    optimize: Callable[..., Any]  # compiled
    networks: Networks
    opt_state: PyTree
    grads: Networks
    experience: Experience
    clock: Clock
    after: Networks

    def repeat(
        self, *, networks: Networks | None = None, grads: Networks | None = None
    ) -> Networks:
        """Return the networks after the update, with other networks or gradients."""
        networks = self.networks if networks is None else networks
        grads = self.grads if grads is None else grads
        return self.optimize(networks, self.opt_state, grads, self.experience, self.clock)[0]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class UpdateRun:
    """What some updates changed."""

    paths: list  # of the leaves
    changes: np.ndarray  # [updates, leaves] bool
    gradient_sizes: np.ndarray  # [leaves], the greatest norm in any update
    publishes: np.ndarray  # [updates] bool, whether the actors' networks changed
    first: FirstUpdate

    @property
    def is_changed(self) -> np.ndarray:
        """Whether any update changed a leaf."""
        return np.asarray(self.changes.any(axis=0))

    @property
    def has_gradient(self) -> np.ndarray:
        """Whether a leaf had a gradient in any update."""
        return np.asarray(self.gradient_sizes > 0.0)

    def name(self, index: int) -> str:
        """Return the name of a leaf, and the numbers of the updates."""
        return f"{leaf_name(self.paths[index], 'networks')} (updates 0 … {len(self.changes) - 1})"


def take_updates(evidence: Evidence) -> UpdateRun:
    """Take the updates of a learner cycle, at least 8, on the same data."""
    subject, loss = evidence.subject, evidence.loss
    per_cycle = subject.updates_per_cycle
    agent, _ = subject.agent_on(
        1, target_period=TARGET_PERIOD_UPDATES, learning_rate=_LEARNING_RATE
    )
    optimize = jax.jit(agent.optimize)
    networks, experience = loss.networks, loss.experience(loss.items)
    opt_state = agent.init_opt_state(networks)
    changes, publishes, sizes = [], [], []
    for step in range(min(max(MIN_UPDATES, per_cycle), _MAX_UPDATES)):
        key, clock = jax.random.fold_in(jax.random.key(subject.config.seed), step), loss.clock(step)
        (_, (experience, _)), grads = loss.loss_and_gradients(networks, experience, key, clock)
        after, new_opt_state = optimize(networks, opt_state, grads, experience, clock)
        if step == 0:
            first = FirstUpdate(optimize, networks, opt_state, grads, experience, clock, after)
        changes.append(~are_equal(networks, after))
        acting = (as_numpy(agent.actor_networks(each)) for each in (networks, after))
        publishes.append(not is_equal(*acting))
        sizes.append(norms(grads))
        networks, opt_state = after, new_opt_state
    return UpdateRun(
        paths=[path for path, _ in jax.tree_util.tree_leaves_with_path(networks)],
        changes=np.array(changes),
        gradient_sizes=np.max(sizes, axis=0),
        publishes=np.array(publishes),
        first=first,
    )


class Usage:
    """Which leaves of the networks the loss or acting uses."""

    def __init__(self, evidence: Evidence):
        self._policy, self.loss = evidence.loss.policy, evidence.loss
        if evidence.subject.setting("discount", "gamma") == 0.0:
            self.loss = evidence.loss_with(discount=_DISCOUNT, gamma=_DISCOUNT)

    def is_used(self, index: int) -> bool:
        """Whether other values of a leaf change the loss, a gradient or acting."""
        return (
            self._policy.is_acting[index]
            or self._policy.is_used_in_acting(index, greedy=False)
            or self.is_used_by_loss(index)
        )

    def is_used_by_loss(self, index: int) -> bool:
        """Whether other values of a leaf change the loss or a gradient."""
        items = self.loss.items
        effects = (
            self.loss.effect(items, networks=networks, attempt=attempt)
            for attempt, networks in enumerate(self._others(index))
        )
        return any(effect > self.loss.rounding for effect in effects)

    def has_gradient(self, index: int) -> bool:
        """Whether a leaf has a gradient with other values: units of small networks revive."""
        return any(self.loss.has_gradients(networks)[index] for networks in self._others(index))

    def _others(self, index: int) -> Iterator[Networks]:
        """Yield the networks of each attempt with noise on a leaf."""
        for attempt in range(ATTEMPTS):
            leaves, structure = jax.tree.flatten(self.loss.networks_of(attempt))
            if not jnp.issubdtype(leaves[index].dtype, jnp.floating):
                return
            # Not a constant, to which an advantage minus its mean is blind.
            rng, shift = np.random.default_rng(attempt), SHIFT_OF_PARAMETERS
            noise = rng.normal(shift, shift, leaves[index].shape)
            leaves[index] = leaves[index] + jnp.asarray(noise, leaves[index].dtype)
            yield jax.tree.unflatten(structure, leaves)


def norms(tree: PyTree) -> np.ndarray:
    """Return the norm of each leaf; 0 of leaves that are no floats."""

    def norm(leaf: Any) -> float:
        is_float = jnp.issubdtype(leaf.dtype, jnp.floating)
        return float(np.linalg.norm(leaf)) if is_float else 0.0

    return np.array([norm(leaf) for leaf in jax.tree.leaves(as_numpy(tree))])


def are_equal(left: PyTree, right: PyTree) -> np.ndarray:
    """Return which leaves are equal, bool `[leaves]`."""
    pairs = zip(jax.tree.leaves(as_numpy(left)), jax.tree.leaves(as_numpy(right)), strict=True)
    return np.array([np.array_equal(a, b) for a, b in pairs], bool)
