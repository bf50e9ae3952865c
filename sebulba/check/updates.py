"""Questions about optimisation steps: they descend, and every leaf that is used gets updated."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sebulba.check.evidence import Evidence
from sebulba.check.policy import with_noise
from sebulba.check.question import Needs, Question
from sebulba.check.recording import first_learning_cycle
from sebulba.check.result import (
    Answer,
    as_numpy,
    failed,
    is_equal,
    leaf_name,
    passed,
    unclear,
)
from sebulba.check.sensitivity import ATTEMPTS
from sebulba.check.settings import settings_of
from sebulba.types import Clock, Experience, Networks, PyTree

_TARGET_PERIOD_UPDATES = 3
_MIN_UPDATES = 8
_MAX_UPDATES = 256  # of a cycle; the defaults of continuous tasks have 160
_LEARNING_RATE = 0.01  # a schedule may be at 0
_DISCOUNT = 0.9  # instead of 0, with which no target network is in use
_SHIFT_OF_PARAMETERS = 0.37
_MIN_ASCENT_COSINE = 0.05  # of a step and the gradients; less may be weight decay
_MIN_RELATIVE_GRADIENT = 1e-3  # of the greatest gradient; less may be lost in rounding


def updates(evidence: Evidence) -> Answer:
    """Take updates with one learner device and a short target period, and look at each leaf."""
    subject = evidence.subject
    run = _run(evidence)
    if not run.is_changed.any() and subject.setting("learning_rate") is None:
        return unclear(f"{len(run.changes)} updates change nothing; is the learning rate 0?")
    key = jax.random.key(subject.config.seed)
    fixed = fixed_leaves(run, lambda: subject.agent.init_networks(key))
    failure = (
        _ascends(run)
        or _unchanged(run, evidence, fixed)
        or _changes_within_cycle(run, evidence)
        or _unlike_descent(run)
        or _unused(run, evidence)
    )
    if failure is None and "target_period" in dict(settings_of(subject.config.agent)):
        failure = wrong_period(run) or _target_acts(run, evidence)
    if failure is not None:
        return failure
    if len(fixed) and evidence.shared(_Usage).is_used_by_loss(int(fixed[0])):
        return unclear(
            f"{run.name(int(fixed[0]))} is in use and never changes: right for a network that stays"
            " as random as it began, as in RND, and wrong for a target network"
        )
    num_changed, num_leaves = int(run.is_changed.sum()), len(run.paths)
    detail = f"{num_changed} leaves changed in {len(run.changes)} updates"
    unused = num_leaves - num_changed
    return passed(f"{detail}; {unused} are not in use" if unused else detail)


@dataclasses.dataclass(frozen=True, eq=False)
class _FirstUpdate:
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
    first: _FirstUpdate

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
        return f"{leaf_name('networks', self.paths[index])} (updates 0 … {len(self.changes) - 1})"


def _run(evidence: Evidence) -> UpdateRun:
    subject, loss = evidence.subject, evidence.loss
    per_cycle = subject.agent.num_updates_per_cycle(first_learning_cycle(subject) or 0)
    agent, _ = subject.agent_on(
        1, target_period=_TARGET_PERIOD_UPDATES, learning_rate=_LEARNING_RATE
    )
    optimize = jax.jit(agent.optimize)
    networks, experience = loss.networks, loss.experience(loss.items)
    opt_state = agent.init_opt_state(networks)
    changes, publishes, sizes = [], [], []
    for step in range(min(max(_MIN_UPDATES, per_cycle), _MAX_UPDATES)):
        key, clock = jax.random.fold_in(jax.random.key(subject.config.seed), step), loss.clock(step)
        (_, (experience, _)), grads = loss.loss_and_gradients(networks, experience, key, clock)
        after, new_opt_state = optimize(networks, opt_state, grads, experience, clock)
        if step == 0:
            first = _FirstUpdate(optimize, networks, opt_state, grads, experience, clock, after)
        changes.append(~_are_equal(networks, after))
        acting = (as_numpy(agent.actor_networks(each)) for each in (networks, after))
        publishes.append(not is_equal(*acting))
        sizes.append(_sizes(grads))
        networks, opt_state = after, new_opt_state
    return UpdateRun(
        paths=[path for path, _ in jax.tree_util.tree_leaves_with_path(networks)],
        changes=np.array(changes),
        gradient_sizes=np.max(sizes, axis=0),
        publishes=np.array(publishes),
        first=first,
    )


def _ascends(run: UpdateRun) -> Answer | None:
    """Return a failure if the first step has a clear component along the gradients."""
    trees = (run.first.grads, run.first.networks, run.first.after)
    leaves = zip(*map(jax.tree.leaves, map(as_numpy, trees)), strict=True)
    pairs = [
        (grad.astype(np.float64), new.astype(np.float64) - old)
        for grad, old, new in leaves
        if np.issubdtype(grad.dtype, np.floating)
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


class _Usage:
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
            rng, shift = np.random.default_rng(attempt), _SHIFT_OF_PARAMETERS
            noise = rng.normal(shift, shift, leaves[index].shape)
            leaves[index] = leaves[index] + jnp.asarray(noise, leaves[index].dtype)
            yield jax.tree.unflatten(structure, leaves)


def _unchanged(run: UpdateRun, evidence: Evidence, fixed: np.ndarray) -> Answer | None:
    """Look for leaves that are in use, and that no update changed, besides `fixed` ones."""
    usage = evidence.shared(_Usage)
    agent = evidence.subject.agent
    per_cycle = agent.num_updates_per_cycle(first_learning_cycle(evidence.subject) or 0)
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


def fixed_leaves(run: UpdateRun, init_networks: Callable[[], Networks]) -> np.ndarray:
    """Return the leaves of the parts of the networks that never change and begin as no copies.

    As the random features of RND (Burda et al. 2018, arXiv 1810.12894). A target network begins as
    a copy of another part. A part is an attribute or a key of the networks.

    Args:
        run: some updates.
        init_networks: returns networks as they begin; called only if a part never changes.

    Returns:
        Their numbers `[n]`, ascending.
    """
    parts = np.array([str(path[:1]) for path in run.paths])
    is_touched = run.is_changed | run.has_gradient
    untouched = [part for part in dict.fromkeys(parts) if not is_touched[parts == part].any()]
    if not untouched:
        return np.array([], int)
    leaves = list(map(np.asarray, jax.tree.leaves(as_numpy(init_networks()))))
    learned = [leaf for leaf, learns in zip(leaves, run.has_gradient, strict=True) if learns]
    fixed: list[int] = []
    for part in untouched:
        of_part = np.flatnonzero(parts == part)
        varied = [leaves[index] for index in of_part if len(np.unique(leaves[index])) > 1]
        is_copy = any(np.array_equal(one, other) for one in varied for other in learned)
        if varied and not is_copy:
            fixed += of_part.tolist()
    return np.array(fixed, int)


def _unused(run: UpdateRun, evidence: Evidence) -> Answer | None:
    """Look for a part of the networks that changes without a gradient, and is of no use.

    A part is an attribute or a key of the networks, such as the target network: some of its leaves
    may be of no use, as a model's are in a search with few simulations.
    """
    usage = evidence.shared(_Usage)
    parts: dict[str, list[int]] = {}
    is_large = [np.size(leaf) > 1 for leaf in jax.tree.leaves(evidence.loss.networks)]
    for index in map(int, np.flatnonzero(run.is_changed & ~run.has_gradient & is_large)):
        parts.setdefault(str(run.paths[index][:1]), []).append(index)
    for part in parts.values():
        if not any(map(usage.is_used, part)):
            return failed(
                f"{run.name(part[0])}: expected the loss or acting to use a leaf that optimize"
                " changes, got no difference with other values of it, and of the leaves beside it",
                "the online network takes the place of the target network",
            )
    return None


def _changes_within_cycle(run: UpdateRun, evidence: Evidence) -> Answer | None:
    """Look for statistics, such as moments of observations, that change before a cycle's end."""
    agent = evidence.subject.agent
    per_cycle = agent.num_updates_per_cycle(first_learning_cycle(evidence.subject) or 0)
    if not evidence.loss.is_on_policy or per_cycle < 2:
        return None
    changes = run.changes[:per_cycle]
    early = changes[:-1].any(axis=0) & ~run.has_gradient
    if not early.any():
        return None
    for index in np.flatnonzero(early & np.array(evidence.loss.policy.is_acting)):
        updates = np.flatnonzero(changes[:, index])
        return failed(
            f"{leaf_name('networks', run.paths[index])} (updates {', '.join(map(str, updates))}):"
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
    leaves, structure = jax.tree.flatten(first.grads)
    sizes = _sizes(first.grads)
    for index in map(int, np.flatnonzero(sizes > _MIN_RELATIVE_GRADIENT * sizes.max())):
        without = [*leaves]
        without[index] = jnp.zeros_like(leaves[index])
        after = first.repeat(grads=jax.tree.unflatten(structure, without))
        if is_equal(as_numpy(after), as_numpy(first.after)):
            return failed(
                f"{leaf_name('gradient', run.paths[index])} (update 0): expected 0 where optimize"
                " does not use the gradient, got another value",
                "a stop_gradient is missing",
            )
    leaves, structure = jax.tree.flatten(first.networks)
    shifted = [
        leaf + jnp.asarray(_SHIFT_OF_PARAMETERS, leaf.dtype) if size else leaf
        for leaf, size in zip(leaves, sizes, strict=True)
    ]
    after = first.repeat(networks=jax.tree.unflatten(structure, shifted))
    for forgotten in np.flatnonzero(_are_equal(after, first.after) & (sizes > 0.0)):
        return failed(
            f"{leaf_name('networks', run.paths[forgotten])} (update 0): expected optimize to add"
            " its step to the old value, got the same new value from another old one",
            "the step is added to the target network",
        )
    return None


def wrong_period(run: UpdateRun) -> Answer | None:
    """Compare the updates that change leaves without a gradient with a target period of 3."""
    period = _TARGET_PERIOD_UPDATES
    copies = np.flatnonzero(run.changes[:, ~run.has_gradient].any(axis=1))
    learns = np.flatnonzero(run.changes[:, run.has_gradient].any(axis=1))
    if not len(copies) or not len(learns):
        return None
    name = run.name(int(np.flatnonzero(~run.has_gradient & run.is_changed)[0]))
    # The first copy may come before the first update, or after a whole period.
    if copies[0] > period or np.any(np.diff(copies) != period):
        return failed(
            f"{name}: expected a change in every {period}rd with agent.target_period {period}, and"
            f" the first until update {period}, got changes in {', '.join(map(str, copies))}",
            "the target network is not kept between copies, or the period does not count updates"
            " from the first one on",
        )
    return None


def publishes_copies_only(run: UpdateRun) -> bool:
    """Return whether actors get other networks in updates with a copy to a target network only."""
    copies = run.changes[:, ~run.has_gradient].any(axis=1)
    learns = run.changes[:, run.has_gradient].any(axis=1)
    return bool(copies.sum() < learns.sum() and not np.any(run.publishes & ~copies))


def _target_acts(run: UpdateRun, evidence: Evidence) -> Answer | None:
    """Look for actors that get the target network in place of the one that learns.

    Some agents act with a copy on purpose: V-MPO (Song et al. 2019, arXiv 1909.12238) uses it for
    nothing else, and MPO (Abdolmaleki et al. 2018, arXiv 1806.06920) copies a critic as well, which
    does not act.
    """
    if not publishes_copies_only(run):
        return None
    usage, agent = evidence.shared(_Usage), evidence.subject.agent
    leaves, structure = jax.tree.flatten(run.first.networks)

    def reaches_actors(index: int) -> bool:
        others = [*leaves]
        others[index] = with_noise(leaves[index], np.random.default_rng(0), _SHIFT_OF_PARAMETERS)
        networks = jax.tree.unflatten(structure, others)
        acting = (as_numpy(agent.actor_networks(each)) for each in (run.first.networks, networks))
        return not is_equal(*acting)

    is_copied = run.is_changed & ~run.has_gradient & [np.size(leaf) > 1 for leaf in leaves]
    copied = [int(index) for index in np.flatnonzero(is_copied)]
    if not all(map(reaches_actors, copied)) or not any(map(usage.is_used_by_loss, copied)):
        return None
    return failed(
        f"actor_networks (updates 0 … {len(run.changes) - 1}): expected other networks for the"
        f" actors after every update, got them with copies to {run.name(copied[0])} only",
        "actors get the target network",
    )


def _sizes(tree: PyTree) -> np.ndarray:
    """Return the norm of each leaf; 0 of leaves that are no floats."""

    def norm(leaf: Any) -> float:
        is_float = np.issubdtype(leaf.dtype, np.floating)
        return float(np.linalg.norm(leaf)) if is_float else 0.0

    return np.array([norm(leaf) for leaf in jax.tree.leaves(as_numpy(tree))])


def _are_equal(left: PyTree, right: PyTree) -> np.ndarray:
    pairs = zip(jax.tree.leaves(as_numpy(left)), jax.tree.leaves(as_numpy(right)), strict=True)
    return np.array([np.array_equal(a, b) for a, b in pairs], bool)


UPDATES = Question(
    name="updates",
    ask=updates,
    property="updates descend, and reach every leaf in use",
    needs=Needs.UPDATES,
    perturbs=(
        f"takes {_MIN_UPDATES} updates or a cycle of them; gives leaves noise, and gradients of "
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
