"""Checks of optimisation steps: they descend, and every leaf that is used gets updated."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sebulba.tools.check.names import UPDATES
from sebulba.tools.check.policy import Policy
from sebulba.tools.check.recording import Recording, first_learning_cycle
from sebulba.tools.check.result import CheckResult, as_numpy, failed, is_equal, leaf_name, passed
from sebulba.tools.check.sampling import first_row
from sebulba.tools.check.sensitivity import LossSensitivity
from sebulba.tools.check.subject import Subject, settings_of
from sebulba.types import Clock, PyTree

_PERIOD = 3  # of a target network, in updates
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
    agent, _ = subject.agent_on(1, target_period=_PERIOD)
    optimize = jax.jit(agent.optimize)
    before = sensitivity.networks
    networks, experience = before, sensitivity.experience(sensitivity.items)
    opt_state = agent.init_opt_state(networks)
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(before)]
    has_gradient = np.zeros(len(paths), bool)
    changes: list[np.ndarray] = []  # of each update, which leaves it changed
    publishes: list[bool] = []  # whether it changed what actors get
    unlike_descent: str | None = None
    for step in range(num_updates):
        key = jax.random.fold_in(jax.random.key(subject.config.seed), step)
        clock = sensitivity.clock(step)
        (_, (experience, _)), grads = sensitivity.loss_and_gradients(
            networks, experience, key, clock
        )
        opt_before = opt_state
        after, opt_state = optimize(networks, opt_before, grads, experience, clock)
        slope = _slope(grads, networks, after)
        if step == 0 and slope > 0.0:
            return failed(
                UPDATES,
                "networks (update 0): expected the step of optimize to have a negative product"
                f" with the gradients, got {slope:.3g}; likely cause: optimize adds the gradients",
            )
        if step == 0:
            others = (opt_before, grads, experience, after)
            first = functools.partial(_at, optimize, clock)
            unlike_descent = _unlike_descent(paths, first, networks, *others)
        changes.append(~_are_equal(networks, after))
        acting = (as_numpy(agent.actor_networks(each)) for each in (networks, after))
        publishes.append(not is_equal(*acting))
        networks = after
        has_gradient |= [bool(np.any(leaf)) for leaf in jax.tree.leaves(as_numpy(grads))]
    is_changed = np.any(changes, axis=0)
    is_used = functools.partial(_is_used, subject, recording, sensitivity)
    place = f"(updates 0 … {num_updates - 1})"
    failure = _unchanged(is_changed, has_gradient, is_used, paths, place)
    if failure is None and sensitivity.is_on_policy and per_cycle > 1:
        of_cycle = np.array(changes)[:per_cycle]
        failure = _changes_within_cycle(sensitivity.policy, of_cycle, has_gradient, paths)
    failure = failure or unlike_descent
    if failure is not None:
        return failed(UPDATES, failure)
    for index in np.flatnonzero(is_changed & ~has_gradient):
        if np.size(jax.tree.leaves(before)[index]) > 1 and not is_used(int(index)):
            return failed(
                UPDATES,
                f"{leaf_name('networks', paths[index])} {place}: expected the loss or acting to use"
                " a leaf that optimize changes, got no difference with other values of it; likely"
                " cause: the online network takes the place of the target network",
            )
    if "target_period" in dict(settings_of(subject.config.agent)):
        failure = _wrong_period(np.array(changes), has_gradient, np.array(publishes), paths)
        if failure is not None:
            return failed(UPDATES, failure)
    unused = len(paths) - int(is_changed.sum())
    detail = f"{int(is_changed.sum())} leaves changed in {num_updates} updates"
    return passed(UPDATES, f"{detail}; {unused} are not in use" if unused else detail)


def _at(optimize: Any, clock: Clock, *args: Any) -> Any:
    return optimize(*args, clock)


def _unchanged(
    is_changed: np.ndarray,
    has_gradient: np.ndarray,
    is_used: Callable[[int], bool],
    paths: list,
    place: str,
) -> str | None:
    """Return what is wrong with the first leaf that is in use, and that no update changed."""
    for index in np.flatnonzero(~is_changed):
        what = f"{leaf_name('networks', paths[index])} {place}"
        if has_gradient[index]:
            return (
                f"{what}: expected optimize to change a leaf with a gradient, got the same values;"
                " likely cause: optimize leaves it out"
            )
        if is_used(int(index)):
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
    sizes = [
        float(jnp.linalg.norm(leaf)) if jnp.issubdtype(leaf.dtype, jnp.floating) else 0.0
        for leaf in leaves
    ]
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
    leaves = zip(*map(jax.tree.leaves, map(as_numpy, (grads, before, after))), strict=True)
    return float(
        sum(
            np.sum(grad.astype(np.float64) * (new.astype(np.float64) - old))
            for grad, old, new in leaves
            if np.issubdtype(grad.dtype, np.floating)
        )
    )


def _are_equal(left: PyTree, right: PyTree) -> np.ndarray:
    pairs = zip(jax.tree.leaves(as_numpy(left)), jax.tree.leaves(as_numpy(right)), strict=True)
    return np.array([np.array_equal(a, b) for a, b in pairs], bool)


def _is_used(
    subject: Subject, recording: Recording, sensitivity: LossSensitivity, index: int
) -> bool:
    """Whether another value of a leaf changes the loss, a gradient or greedy acting."""
    leaves, structure = jax.tree.flatten(sensitivity.networks)
    if not jnp.issubdtype(leaves[index].dtype, jnp.floating):
        return False
    # Not a constant, to which an advantage minus its mean is blind.
    noise = np.random.default_rng(0).normal(_SHIFT, _SHIFT, leaves[index].shape)
    leaves[index] = leaves[index] + jnp.asarray(noise, leaves[index].dtype)
    shifted = jax.tree.unflatten(structure, leaves)
    experience = sensitivity.experience(sensitivity.items)
    row, state = first_row(recording), subject.start_states[0]

    def outputs(networks: PyTree) -> Any:
        key = jax.random.key(subject.config.seed)
        learned = sensitivity.loss_and_gradients(networks, experience, key, sensitivity.clock())
        acted = subject.agent.act(subject.agent.actor_networks(networks), state, row, greedy=True)
        # The leaf's own gradient aside, an experience may hold what was computed from the networks.
        (loss, _), grads = learned
        return as_numpy((loss, grads, acted[:2]))

    return not is_equal(outputs(sensitivity.networks), outputs(shifted))
