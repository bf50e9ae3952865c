"""Checks of optimisation steps: they descend, and every leaf that is used gets updated."""

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sebulba.tools.check.names import UPDATES
from sebulba.tools.check.policy import Policy
from sebulba.tools.check.recording import Recording, first_learning_cycle
from sebulba.tools.check.result import (
    CheckResult,
    as_numpy,
    failed,
    is_equal,
    leaf_name,
    passed,
    unclear,
)
from sebulba.tools.check.sensitivity import ATTEMPTS, MAX_ROUNDING, LossSensitivity
from sebulba.tools.check.subject import Subject, settings_of
from sebulba.types import PyTree

_PERIOD = 3  # of a target network, in updates
_LEARNING_RATE = 0.01  # a schedule may be at 0
_MIN_ASCENT = 0.05  # cosine of a step and the gradients; less may be weight decay
_DISCOUNT = 0.9  # instead of 0, with which no target network is in use
_LEAST_UPDATES = 8
_MOST_UPDATES = 64
_SHIFT = 0.37
_LEAST_SIZE = 1e-3  # of a gradient, relative to the greatest


def check_updates(
    subject: Subject, recording: Recording, sensitivity: LossSensitivity
) -> CheckResult:
    """Take updates with one learner device and a short target period, and look at each leaf."""
    cycle = first_learning_cycle(subject) or 0
    per_cycle = subject.agent.num_updates_per_cycle(cycle)
    num_updates = min(max(_LEAST_UPDATES, per_cycle), _MOST_UPDATES)
    agent, _ = subject.agent_on(1, target_period=_PERIOD, learning_rate=_LEARNING_RATE)
    optimize = jax.jit(agent.optimize)
    before = sensitivity.networks
    networks, experience = before, sensitivity.experience(sensitivity.items)
    opt_state = agent.init_opt_state(networks)
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(before)]
    gradient_sizes = np.zeros(len(paths))
    changes: list[np.ndarray] = []  # of each update, which leaves it changed
    publishes: list[bool] = []  # whether it changed what actors get
    unlike_descent: str | None = None
    for step in range(num_updates):
        key = jax.random.fold_in(jax.random.key(subject.config.seed), step)
        (_, (experience, _)), grads = sensitivity.loss_and_gradients(
            networks, experience, key, jnp.int32(step)
        )
        opt_before = opt_state
        after, opt_state = optimize(networks, opt_before, grads, experience)
        slope = _slope(grads, networks, after)
        if step == 0 and slope > _MIN_ASCENT:
            return failed(
                UPDATES,
                "networks (update 0): expected the step of optimize to have a negative cosine"
                f" with the gradients, got {slope:.2f}; likely cause: optimize adds the gradients",
            )
        if step == 0:
            others = (opt_before, grads, experience, after)
            unlike_descent = _unlike_descent(paths, optimize, networks, *others)
        changes.append(~_are_equal(networks, after))
        acting = (as_numpy(agent.actor_networks(each)) for each in (networks, after))
        publishes.append(not is_equal(*acting))
        networks = after
        gradient_sizes = np.maximum(gradient_sizes, _sizes(grads))
    is_changed, has_gradient = np.any(changes, axis=0), gradient_sizes > 0.0
    if not is_changed.any() and subject.setting("learning_rate") is None:
        return unclear(UPDATES, f"{num_updates} updates change nothing; is the learning rate 0?")
    usage = _Usage(subject, recording, sensitivity)
    place = f"(updates 0 … {num_updates - 1})"
    has_great_gradient = gradient_sizes > _LEAST_SIZE * gradient_sizes.max()
    unchanged = np.flatnonzero(~is_changed)
    failure = _unchanged(unchanged, has_great_gradient, usage, paths, place)
    if failure is None and sensitivity.is_on_policy and per_cycle > 1:
        of_cycle = np.array(changes)[:per_cycle]
        failure = _changes_within_cycle(sensitivity.policy, of_cycle, has_gradient, paths)
    failure = failure or unlike_descent
    if failure is not None:
        return failed(UPDATES, failure)
    is_large = np.array([np.size(leaf) > 1 for leaf in jax.tree.leaves(before)])
    index = usage.first_unused(np.flatnonzero(is_changed & ~has_gradient & is_large), paths)
    if index is not None:
        return failed(
            UPDATES,
            f"{leaf_name('networks', paths[index])} {place}: expected the loss or acting to use a"
            " leaf that optimize changes, got no difference with other values of it, and of the"
            " leaves beside it; likely cause: the online network takes the place of the target"
            " network",
        )
    if "target_period" in dict(settings_of(subject.config.agent)):
        failure = _wrong_period(np.array(changes), has_gradient, np.array(publishes), paths)
        if failure is not None:
            return failed(UPDATES, failure)
    unused = len(paths) - int(is_changed.sum())
    detail = f"{int(is_changed.sum())} leaves changed in {num_updates} updates"
    return passed(UPDATES, f"{detail}; {unused} are not in use" if unused else detail)


class _Usage:
    """Which leaves of the networks the loss or acting uses."""

    def __init__(self, subject: Subject, recording: Recording, sensitivity: LossSensitivity):
        self._policy, self.sensitivity = sensitivity.policy, sensitivity
        if subject.setting("discount", "gamma") == 0.0:
            settings = {"discount": _DISCOUNT, "gamma": _DISCOUNT}
            self.sensitivity = LossSensitivity(subject, recording, **settings)

    def is_used(self, index: int) -> bool:
        """Whether other values of a leaf change the loss, a gradient or greedy acting."""
        if self._policy.is_acting[index]:
            return True
        for attempt in range(ATTEMPTS):
            leaves, structure = jax.tree.flatten(self.sensitivity.networks_of(attempt))
            if not jnp.issubdtype(leaves[index].dtype, jnp.floating):
                return False
            # Not a constant, to which an advantage minus its mean is blind.
            noise = np.random.default_rng(attempt).normal(_SHIFT, _SHIFT, leaves[index].shape)
            leaves[index] = leaves[index] + jnp.asarray(noise, leaves[index].dtype)
            networks = jax.tree.unflatten(structure, leaves)
            items = self.sensitivity.items
            effect = self.sensitivity.effect(items, networks=networks, attempt=attempt)
            if effect > MAX_ROUNDING:
                return True
        return False

    def first_unused(self, indices: Iterable[int], paths: list) -> int | None:
        """Return the first leaf of a part of the networks of which no leaf is in use.

        A part is an attribute or a key of the networks, such as the target network: some of its
        leaves may be of no use, as a model's are in a search with few simulations.
        """
        parts: dict[str, list[int]] = {}
        for index in map(int, indices):
            parts.setdefault(str(paths[index][:1]), []).append(index)
        unused = (part for part in parts.values() if not any(map(self.is_used, part)))
        return next((part[0] for part in unused), None)


def _unchanged(
    unchanged: Iterable[int], has_gradient: np.ndarray, usage: _Usage, paths: list, place: str
) -> str | None:
    """Return what is wrong with the first leaf that is in use, and that no update changed."""
    for index in map(int, unchanged):
        what = f"{leaf_name('networks', paths[index])} {place}"
        if has_gradient[index]:
            return (
                f"{what}: expected optimize to change a leaf with a gradient, got the same values;"
                " likely cause: optimize leaves it out"
            )
        # Units of a small network may be dead, and revive with other parameters.
        is_dead = any(usage.sensitivity.has_gradients(each)[index] for each in range(1, ATTEMPTS))
        if not is_dead and usage.is_used(index):
            return (
                f"{what}: expected a leaf that the loss or acting uses to change, got the same"
                " values, and no gradient; likely cause: the target network is never updated (if"
                " its period is longer, call the setting target_period), or stop_gradient cuts the"
                " leaf off"
            )
    return None


def _changes_within_cycle(
    policy: Policy, changes: np.ndarray, has_gradient: np.ndarray, paths: list
) -> str | None:
    """Look for statistics, such as moments of observations, that change before a cycle's end.

    Args:
        policy: says which leaves acting uses.
        changes: `[updates, leaves]` bool, of the updates of one learner cycle.
        has_gradient: `[leaves]` bool.
        paths: of the leaves.
    """
    early = changes[:-1].any(axis=0) & ~has_gradient
    if not early.any():
        return None
    for index in np.flatnonzero(early & np.array(policy.is_acting)):
        updates = np.flatnonzero(changes[:, index])
        return (
            f"{leaf_name('networks', paths[index])} (updates {', '.join(map(str, updates))}):"
            f" expected it to change in the last of a cycle's {len(changes)} updates only, since"
            " acting uses it, and it is not learned by gradients; likely cause: statistics change"
            " between the minibatches of one cycle, which then see other inputs than acting did"
        )
    return None


def _wrong_period(
    changes: np.ndarray, has_gradient: np.ndarray, publishes: np.ndarray, paths: list
) -> str | None:
    """Compare the updates that change leaves without a gradient with a target period of 3.

    Args:
        changes: `[updates, leaves]` bool.
        has_gradient: `[leaves]` bool.
        publishes: `[updates]` bool, whether an update changes the actors' networks.
        paths: of the leaves.
    """
    copies = np.flatnonzero(changes[:, ~has_gradient].any(axis=1))
    learns = np.flatnonzero(changes[:, has_gradient].any(axis=1))
    if not len(copies) or not len(learns):
        return None
    name = leaf_name("networks", paths[np.flatnonzero(~has_gradient & changes.any(axis=0))[0]])
    # The first copy may come before the first update, or after a whole period.
    if copies[0] > _PERIOD or np.any(np.diff(copies) != _PERIOD):
        return (
            f"{name} (updates 0 … {len(changes) - 1}): expected a change in every {_PERIOD}rd with"
            f" agent.target_period {_PERIOD}, and the first until update {_PERIOD}, got changes in"
            f" {', '.join(map(str, copies))}; likely cause: the target network is not kept between"
            " copies, or the period does not count updates from the first one on"
        )
    if set(np.flatnonzero(publishes)) <= set(copies) and len(learns) > len(copies):
        return (
            f"actor_networks (updates 0 … {len(changes) - 1}): expected other networks for the"
            f" actors after every update, got them with copies of the target network ({name}) only;"
            " likely cause: actors get the target network"
        )
    return None


def _unlike_descent(paths: list, *update: Any) -> str | None:
    """Return what is wrong with the first leaf whose new value lacks its gradient or old value.

    Args:
        paths: of the leaves.
        update: as for `_first_ignored`.
    """
    if (index := _first_ignored(*update)) is not None:
        return (
            f"{leaf_name('gradient', paths[index])} (update 0): expected 0 where optimize does"
            " not use the gradient, got another value; likely cause: a stop_gradient is missing"
        )
    if (index := _first_forgotten(*update)) is not None:
        return (
            f"{leaf_name('networks', paths[index])} (update 0): expected optimize to add its step"
            " to the old value, got the same new value from another old one; likely cause: the"
            " step is added to the target network"
        )
    return None


def _first_ignored(optimize: Any, networks: PyTree, *others: Any) -> int | None:
    """Return the first leaf that has a gradient, without which `optimize` gives the same networks.

    Args:
        optimize: of the agent.
        networks: before the update.
        others: optimizer state, gradients, experience, and the networks after the update.
    """
    opt_state, grads, experience, after = others
    if is_equal(as_numpy(networks), as_numpy(after)):
        return None  # A learning rate of 0, as in a warm-up.
    leaves, structure = jax.tree.flatten(grads)
    sizes = _sizes(grads)
    for index, leaf in enumerate(leaves):
        # Small gradients may be lost in rounding.
        if sizes[index] == 0.0 or sizes[index] < _LEAST_SIZE * max(sizes):
            continue
        without = [*leaves]
        without[index] = jnp.zeros_like(leaf)
        result = optimize(networks, opt_state, jax.tree.unflatten(structure, without), experience)
        if is_equal(as_numpy(result[0]), as_numpy(after)):
            return index
    return None


def _first_forgotten(optimize: Any, networks: PyTree, *others: Any) -> int | None:
    """Return the first leaf with a gradient whose new value does not depend on its old one.

    Args:
        optimize: of the agent.
        networks: before the update.
        others: optimizer state, gradients, experience, and the networks after the update.
    """
    opt_state, grads, experience, after = others
    leaves, structure = jax.tree.flatten(networks)
    has_gradient = [bool(np.any(leaf)) for leaf in jax.tree.leaves(as_numpy(grads))]
    shifted = [
        leaf + jnp.asarray(_SHIFT, leaf.dtype) if has else leaf
        for leaf, has in zip(leaves, has_gradient, strict=True)
    ]
    result = optimize(jax.tree.unflatten(structure, shifted), opt_state, grads, experience)[0]
    is_same = _are_equal(result, after) & np.array(has_gradient)
    return int(np.flatnonzero(is_same)[0]) if is_same.any() else None


def _slope(grads: PyTree, before: PyTree, after: PyTree) -> float:
    """Return the cosine between the step of an update and the gradients."""
    leaves = zip(*map(jax.tree.leaves, map(as_numpy, (grads, before, after))), strict=True)
    pairs = [
        (grad.astype(np.float64), new.astype(np.float64) - old)
        for grad, old, new in leaves
        if np.issubdtype(grad.dtype, np.floating)
    ]
    product = sum(float(np.sum(grad * step)) for grad, step in pairs)
    squares = [sum(float(np.sum(pair[side] ** 2)) for pair in pairs) for side in (0, 1)]
    return product / max(float(np.sqrt(squares[0] * squares[1])), 1e-30)


def _sizes(grads: PyTree) -> np.ndarray:
    """Return the norm of each leaf; 0 of leaves that are no floats."""
    leaves = jax.tree.leaves(as_numpy(grads))
    is_float = [np.issubdtype(leaf.dtype, np.floating) for leaf in leaves]
    norms = (float(np.linalg.norm(leaf)) for leaf in leaves)
    return np.array([norm if is_ else 0.0 for norm, is_ in zip(norms, is_float, strict=True)])


def _are_equal(left: PyTree, right: PyTree) -> np.ndarray:
    pairs = zip(jax.tree.leaves(as_numpy(left)), jax.tree.leaves(as_numpy(right)), strict=True)
    return np.array([np.array_equal(a, b) for a, b in pairs], bool)
