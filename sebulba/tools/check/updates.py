"""Checks of optimisation steps: they descend, and every leaf that is used gets updated."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sebulba.tools.check.names import UPDATES
from sebulba.tools.check.recording import Recording, first_learning_cycle
from sebulba.tools.check.result import CheckResult, as_numpy, failed, is_equal, leaf_name, passed
from sebulba.tools.check.sampling import first_row
from sebulba.tools.check.sensitivity import LossSensitivity
from sebulba.tools.check.subject import Subject
from sebulba.types import PyTree

_SHORT_PERIOD = 2  # of a target network, in updates
_LEAST_UPDATES = 6
_MOST_UPDATES = 64
_SHIFT = 0.37


def check_updates(
    subject: Subject, recording: Recording, sensitivity: LossSensitivity
) -> CheckResult:
    """Take updates with one learner device and a short target period, and look at each leaf."""
    cycle = first_learning_cycle(subject) or 0
    per_cycle = subject.agent.num_updates_per_cycle(cycle)
    num_updates = min(max(_LEAST_UPDATES, per_cycle), _MOST_UPDATES)
    agent, _ = subject.agent_on(1, target_period=_SHORT_PERIOD)
    optimize = jax.jit(agent.optimize)
    before = sensitivity.networks
    networks, experience = before, sensitivity.experience(sensitivity.items)
    opt_state = agent.init_opt_state(networks)
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(before)]
    is_changed, has_gradient = np.zeros((2, len(paths)), bool)
    for step in range(num_updates):
        key = jax.random.fold_in(jax.random.key(subject.config.seed), step)
        (_, (experience, _)), grads = sensitivity.loss_and_gradients(
            networks, experience, key, jnp.int32(step)
        )
        after, opt_state = optimize(networks, opt_state, grads, experience)
        slope = _slope(grads, networks, after)
        if step == 0 and slope > 0.0:
            return failed(
                UPDATES,
                "networks (update 0): expected the step of optimize to have a negative product"
                f" with the gradients, got {slope:.3g}; likely cause: optimize adds the gradients",
            )
        networks = after
        is_changed |= ~_are_equal(before, networks)
        has_gradient |= [bool(np.any(leaf)) for leaf in jax.tree.leaves(as_numpy(grads))]
    for index in np.flatnonzero(~is_changed):
        name = leaf_name("networks", paths[index])
        what = f"{name} (updates 0 … {num_updates - 1})"
        if has_gradient[index]:
            return failed(
                UPDATES,
                f"{what}: expected optimize to change a leaf with a gradient, got the same values;"
                " likely cause: optimize leaves it out",
            )
        if _is_used(subject, recording, sensitivity, int(index)):
            return failed(
                UPDATES,
                f"{what}: expected a leaf that the loss or acting uses to change, got the same"
                " values, and no gradient; likely cause: the target network is never updated (if"
                " its period is longer, call the setting target_period), or stop_gradient cuts the"
                " leaf off",
            )
    unused = len(paths) - int(is_changed.sum())
    detail = f"{int(is_changed.sum())} leaves changed in {num_updates} updates"
    return passed(UPDATES, f"{detail}; {unused} are not in use" if unused else detail)


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
    leaves[index] = leaves[index] + jnp.asarray(_SHIFT, leaves[index].dtype)
    shifted = jax.tree.unflatten(structure, leaves)
    experience = sensitivity.experience(sensitivity.items)
    row, state = first_row(recording), subject.start_states[0]

    def outputs(networks: PyTree) -> Any:
        key = jax.random.key(subject.config.seed)
        learned = sensitivity.loss_and_gradients(networks, experience, key, jnp.int32(0))
        acted = subject.agent.act(subject.agent.actor_networks(networks), state, row, greedy=True)
        # The leaf's own gradient aside, an experience may hold what was computed from the networks.
        (loss, _), grads = learned
        return as_numpy((loss, grads, acted[:2]))

    return not is_equal(outputs(sensitivity.networks), outputs(shifted))
