"""Questions about optimisation steps: they descend, and every leaf that is used gets updated."""

import jax
import jax.numpy as jnp
import numpy as np

from sebulba.check.evidence import Evidence
from sebulba.check.parts import fixed_leaves, target_acts, useless_part, wrong_period
from sebulba.check.question import Needs, Question
from sebulba.check.result import Answer, as_numpy, failed, is_equal, passed, unclear
from sebulba.check.settings import settings_of
from sebulba.check.trees import with_leaf
from sebulba.check.update_run import (
    MIN_UPDATES,
    SHIFT_OF_PARAMETERS,
    UpdateRun,
    Usage,
    are_equal,
    norms,
    take_updates,
)
from sebulba.pytree import leaf_name

_MIN_ASCENT_COSINE = 0.05  # of a step and the gradients; less may be weight decay
_MIN_RELATIVE_GRADIENT = 1e-3  # of the greatest gradient; less may be lost in rounding


def updates(evidence: Evidence) -> Answer:
    """Take updates with one learner device and a short target period, and look at each leaf."""
    subject = evidence.subject
    run = take_updates(evidence)
    if not run.is_changed.any() and subject.setting("learning_rate") is None:
        return unclear(f"{len(run.changes)} updates change nothing; is the learning rate 0?")
    key = jax.random.key(subject.config.seed)
    fixed = fixed_leaves(run, lambda: subject.agent.init_networks(key))
    failure = (
        _ascends(run)
        or _unchanged(run, evidence, fixed)
        or _changes_within_cycle(run, evidence)
        or _unlike_descent(run)
        or useless_part(run, evidence)
    )
    if failure is None and "target_period" in dict(settings_of(subject.config.agent)):
        failure = wrong_period(run) or target_acts(run, evidence)
    if failure is not None:
        return failure
    if len(fixed) and evidence.shared(Usage).is_used_by_loss(int(fixed[0])):
        return unclear(
            f"{run.name(int(fixed[0]))} is in use and never changes: right for a network that stays"
            " as random as it began, as in RND, and wrong for a target network"
        )
    num_changed, num_leaves = int(run.is_changed.sum()), len(run.paths)
    detail = f"{num_changed} leaves changed in {len(run.changes)} updates"
    unused = num_leaves - num_changed
    return passed(f"{detail}; {unused} are not in use" if unused else detail)


def _ascends(run: UpdateRun) -> Answer | None:
    """Return a failure if the first step has a clear component along the gradients."""
    trees = (run.first.grads, run.first.networks, run.first.after)
    leaves = zip(*map(jax.tree.leaves, map(as_numpy, trees)), strict=True)
    pairs = [
        (grad.astype(np.float64), new.astype(np.float64) - old)
        for grad, old, new in leaves
        if jnp.issubdtype(grad.dtype, jnp.floating)
    ]
    product = sum(float(np.sum(grad * step)) for grad, step in pairs)
    squares = [sum(float(np.sum(pair[side] ** 2)) for pair in pairs) for side in (0, 1)]
    cosine = product / max(float(np.sqrt(squares[0] * squares[1])), 1e-30)
    if cosine <= _MIN_ASCENT_COSINE:
        return None
    return failed(
        "networks (update 0): expected the step of optimize to have a negative cosine with the"
        f" gradients, got {cosine:.2f}",
        "optimize adds the gradients",
    )


def _unchanged(run: UpdateRun, evidence: Evidence, fixed: np.ndarray) -> Answer | None:
    """Look for leaves that are in use, and that no update changed, besides `fixed` ones."""
    usage = evidence.shared(Usage)
    per_cycle = evidence.subject.updates_per_cycle
    # Statistics change in the last update of a cycle.
    is_complete = len(run.changes) >= per_cycle
    is_great = run.gradient_sizes > _MIN_RELATIVE_GRADIENT * run.gradient_sizes.max()
    for index in map(int, np.setdiff1d(np.flatnonzero(~run.is_changed), fixed)):
        if is_great[index]:
            return failed(
                f"{run.name(index)}: expected optimize to change a leaf with a gradient, got the"
                " same values"
            )
        if is_complete and usage.is_used(index) and not usage.has_gradient(index):
            return failed(
                f"{run.name(index)}: expected a leaf that the loss or acting uses to change, got"
                " the same values, and no gradient",
                "the target network is never updated (if its period is longer, call the setting"
                " target_period), or stop_gradient cuts the leaf off",
            )
    return None


def _changes_within_cycle(run: UpdateRun, evidence: Evidence) -> Answer | None:
    """Look for statistics, such as moments of observations, that change before a cycle's end."""
    per_cycle = evidence.subject.updates_per_cycle
    if not evidence.loss.is_on_policy or per_cycle < 2:
        return None
    changes = run.changes[:per_cycle]
    early = changes[:-1].any(axis=0) & ~run.has_gradient
    if not early.any():
        return None
    for index in np.flatnonzero(early & np.array(evidence.loss.policy.is_acting)):
        updates = np.flatnonzero(changes[:, index])
        return failed(
            f"{leaf_name(run.paths[index], 'networks')} (updates {', '.join(map(str, updates))}):"
            f" expected it to change in the last of a cycle's {len(changes)} updates only, since"
            " acting uses it, and it is not learned by gradients",
            "statistics change between the minibatches of one cycle, which then see other inputs"
            " than acting did",
        )
    return None


def _unlike_descent(run: UpdateRun) -> Answer | None:
    """Look for leaves of the first update whose new value lacks the gradient or the old value."""
    first = run.first
    if is_equal(as_numpy(first.networks), as_numpy(first.after)):
        return None
    sizes = norms(first.grads)
    for index in map(int, np.flatnonzero(sizes > _MIN_RELATIVE_GRADIENT * sizes.max())):
        after = first.repeat(grads=with_leaf(first.grads, index, jnp.zeros_like))
        if is_equal(as_numpy(after), as_numpy(first.after)):
            return failed(
                f"{leaf_name(run.paths[index], 'gradient')} (update 0): expected 0 where optimize"
                " does not use the gradient, got another value",
                "a stop_gradient is missing",
            )
    leaves, structure = jax.tree.flatten(first.networks)
    shifted = [
        leaf + jnp.asarray(SHIFT_OF_PARAMETERS, leaf.dtype) if size else leaf
        for leaf, size in zip(leaves, sizes, strict=True)
    ]
    after = first.repeat(networks=jax.tree.unflatten(structure, shifted))
    for forgotten in np.flatnonzero(are_equal(after, first.after) & (sizes > 0.0)):
        return failed(
            f"{leaf_name(run.paths[forgotten], 'networks')} (update 0): expected optimize to add"
            " its step to the old value, got the same new value from another old one",
            "the step is added to the target network",
        )
    return None


UPDATES = Question(
    name="updates",
    ask=updates,
    property="updates descend, and reach every leaf in use",
    needs=Needs.UPDATES,
    perturbs=(
        f"takes {MIN_UPDATES} updates or a cycle of them; gives leaves noise, and gradients of "
        "single leaves zeros"
    ),
    proof=(
        "a leaf counts as in use if noise on it changes the loss, with some networks of several, "
        "or acting, greedy or sampled"
    ),
    expects=(
        "a step against the gradients; a change of each leaf in use, with the target period; use "
        "of each leaf that changes"
    ),
    bound=(
        f"a cosine of {_MIN_ASCENT_COSINE:g} with the gradients, more than weight decay has; "
        f"{_MIN_RELATIVE_GRADIENT:g} of the greatest gradient, below which a step may be lost in "
        "rounding; else exact"
    ),
    likely_cause="optimize leaves it out",
)
