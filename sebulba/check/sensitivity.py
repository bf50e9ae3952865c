"""Whether an agent's loss and gradients depend on a part of its trajectories."""

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sebulba.check.one_device import OneDevice
from sebulba.check.perturbation import Perturbation, has_own_values
from sebulba.check.policy import Policy
from sebulba.check.recording import RecordedTrajectory, Recording
from sebulba.check.result import as_numpy, is_equal
from sebulba.check.subject import Subject
from sebulba.types import Clock, Networks, PyTree

# A replay agent may not sample a changed row in one update; eight make that unlikely.
_NUM_SAMPLED_UPDATES = 8
_ONE_EPOCH = {"num_epochs": 1}  # has every row, so that more are not asked
_SEED = 7
MAX_ROUNDING = 1e-5
"""Changes of gradients by rounding, relative to the greatest gradient.

A sum of a thousand terms in float32 is off by about 1e-6 of the greatest one. Where terms cancel, a
gradient is smaller than they are, so `LossSensitivity.rounding` measures the agent's own.
"""
_TIMES_LAST_BITS = 4.0  # a change of the order of operations, in multiples of one of all last bits
_MOST_ROUNDING = 1e-3  # more is a jump, such as of a greatest value, and no rounding
_MIN_NOISE = 1e-3  # of gradients, relative
ATTEMPTS = 4
"""How often a question is asked, with other networks and keys, before it accuses."""

LossAndGradients = tuple[list[float], list[PyTree]]


class LossSensitivity:
    """Losses and gradients of an agent on one learner device, as a function of trajectories.

    Attempt 0 has the parameters at the end of the recording, or those at its start if the former
    give no gradient. In later attempts, these have noise, which revives units of small networks.
    Random keys depend on the attempt alone, so equal trajectories give bitwise equal results.
    """

    def __init__(self, subject: Subject, recording: Recording, **settings: Any):
        """Choose enough trajectories for a gradient, and compute it as the baseline.

        Args:
            subject: the agent and its run spec.
            recording: trajectories, and the learner's first and last networks.
            settings: of the agent; those that it does not have are ignored.
        """
        self._subject = subject
        self._one = OneDevice(subject, **(_ONE_EPOCH | settings))
        self._run_spec = self._one.run_spec
        self.loss_and_gradients = self._one.loss_and_gradients
        self._num_updates = 1
        self._uses: dict[str, bool] = {}
        # A great learning rate makes a policy certain in a few updates, and the gradients of a
        # certain policy are exactly 0, whatever the loss is.
        for networks in (recording.networks, recording.first_networks):
            self.networks = jax.tree.map(jnp.asarray, networks)
            self.items = self._choose(recording.trajectories)
            first = self._compute(self.items)
            if _has_gradient(first):
                break
        self._baselines = {0: first}
        if not is_equal(first, self._compute(self.items, seed=_SEED + 1)):
            self._num_updates = _NUM_SAMPLED_UPDATES
        if self.is_on_policy:
            # An update may learn from a minibatch; all those of a cycle have every row. The order
            # of minibatches may be drawn before the loss, so that its key shows no sampling.
            cycle = subject.first_learning_cycle or 0
            num_updates = self._one.agent.num_updates_per_cycle(cycle)
            self._num_updates = max(self._num_updates, num_updates)
        if self._num_updates > 1:
            self._baselines = {0: self._compute(self.items)}

    @property
    def has_gradient(self) -> bool:
        """Whether any gradient of the baseline differs from zero."""
        return _has_gradient(self._baselines[0])

    def clock(self, step: int = 0) -> Clock:
        """Return the clock of an update after the baseline's trajectories."""
        return self._one.clock(self.items, step)

    def effect(
        self,
        items: Sequence[RecordedTrajectory],
        *,
        before: Sequence[RecordedTrajectory] | None = None,
        networks: Networks | None = None,
        attempt: int = 0,
    ) -> float:
        """Return the greatest change of a gradient or loss, relative to the greatest gradient.

        Args:
            items: the changed trajectories.
            before: those that they are compared with; None: `self.items`.
            networks: other networks with `items`; None: those of the attempt.
            attempt: number of the networks and keys.
        """
        results = self._compute(items, attempt=attempt, networks=networks)
        if before is not None:
            return _relative_change(self._compute(before, attempt=attempt), results)
        return _relative_change(self._baseline(attempt), results)

    def has_gradients(self, networks: Networks) -> list[bool]:
        """Whether each leaf of these networks has a gradient."""
        _, gradients = self._compute(self.items, networks=networks)
        updates = zip(*map(jax.tree.leaves, gradients), strict=True)
        return [any(map(np.any, leaves)) for leaves in updates]

    def _baseline(self, attempt: int) -> LossAndGradients:
        if attempt not in self._baselines:
            self._baselines[attempt] = self._compute(self.items, attempt=attempt)
        return self._baselines[attempt]

    @functools.cached_property
    def rounding(self) -> float:
        """The greatest change of a gradient that may be rounding, relative to the greatest one.

        What other last bits of all parameters change is rounding by definition.
        """
        rng = np.random.default_rng(_SEED)

        def other_last_bits(leaf: jax.Array) -> jax.Array:
            if not jnp.issubdtype(leaf.dtype, jnp.inexact):
                return leaf
            signs = rng.choice([-1.0, 1.0], leaf.shape)
            factor = 1.0 + signs * float(jnp.finfo(leaf.dtype).eps)
            return leaf * jnp.asarray(factor, leaf.dtype)

        found = self.effect(self.items, networks=jax.tree.map(other_last_bits, self.networks))
        return float(np.clip(_TIMES_LAST_BITS * found, MAX_ROUNDING, _MOST_ROUNDING))

    def has_effect(self, items: Sequence[RecordedTrajectory]) -> bool:
        """Whether these trajectories change the loss or a gradient by more than rounding."""
        return self.effect(items) > self.rounding

    def uses(self, field: str) -> bool:
        """Whether the loss uses a field of `perturbation.FIELDS` anywhere.

        If not, it proves nothing that it ignores the field in some rows.
        """
        if field not in self._uses:
            change = Perturbation(field=field, rows=has_own_values)
            self._uses[field] = self.greatest_effect(change.apply(self.items)) > self.rounding
        return self._uses[field]

    def greatest_effect(
        self,
        items: Sequence[RecordedTrajectory],
        *,
        before: Sequence[RecordedTrajectory] | None = None,
    ) -> float:
        """Return the effect of the first attempt with more than rounding, or the greatest one."""
        effects = []
        for attempt in range(ATTEMPTS):
            effects.append(self.effect(items, before=before, attempt=attempt))
            if effects[-1] > self.rounding:
                break
        return max(effects)

    def mixture(
        self,
        one: Sequence[RecordedTrajectory],
        other: Sequence[RecordedTrajectory],
        both: Sequence[RecordedTrajectory],
        *,
        attempt: int = 0,
    ) -> float:
        """Return how far two changes of gradients are from adding up to that of both.

        It is relative to the greatest gradient.

        Args:
            one: trajectories with the first change.
            other: with the second one.
            both: with both.
            attempt: number of the networks and keys.
        """
        gradients = [self._baseline(attempt)[1]]
        gradients += [self._compute(items, attempt=attempt)[1] for items in (one, other, both)]
        size, gap = 1e-30, 0.0
        for leaves in zip(*map(jax.tree.leaves, gradients), strict=True):
            before, first, second, after = (np.asarray(leaf, np.float64) for leaf in leaves)
            size = max([size, *(float(np.max(np.abs(leaf), initial=0.0)) for leaf in leaves)])
            mixed = after - first - second + before
            gap = max(gap, float(np.max(np.abs(mixed), initial=0.0)))
        return gap / size

    def describe(self, items: list[RecordedTrajectory]) -> str:
        """Describe how these trajectories change the loss and its gradients."""
        before, after = self._baselines[0], self._compute(items)
        change = _relative_change(before, after)
        if change <= self.rounding:
            return "no change of the loss or its gradients"
        losses = list(zip(before[0], after[0], strict=True))
        old, new = next(((a, b) for a, b in losses if a != b), losses[0])
        return f"a loss of {new:.6g} instead of {old:.6g}, and a relative change of {change:.2g}"

    def _choose(self, recorded: tuple[RecordedTrajectory, ...]) -> list[RecordedTrajectory]:
        """Return the trajectories of twice as many learner cycles as a gradient takes.

        Each actor has two of them at least: in row 0 of its first one, all environments reset.
        """
        per_cycle = self._run_spec.trajectories_per_cycle
        least = -(-2 * self._run_spec.num_actors // per_cycle) * per_cycle
        num_cycles = len(recorded) // per_cycle
        for count in range(1, num_cycles + 1):
            if _has_gradient(self._compute(list(recorded[: count * per_cycle]))):
                return list(recorded[: max(least, 2 * count * per_cycle)])
        return list(recorded)

    @property
    def num_unlearned(self) -> int:
        """Number of trajectories at the start of `items` that the loss no longer learns from."""
        if not self.is_on_policy:
            return 0
        return max(0, len(self.items) - self._run_spec.trajectories_per_cycle)

    @functools.cached_property
    def is_on_policy(self) -> bool:
        """Whether the experience holds the trajectories of one learner cycle, and no older ones."""
        per_cycle = self._run_spec.trajectories_per_cycle
        items = self.items[: 2 * per_cycle], self.items[per_cycle : 2 * per_cycle]
        both, newest = ([*_rows(self.experience(each))] for each in items)
        return is_equal(both, newest)

    @functools.cached_property
    def has_noise(self) -> bool:
        """Whether the loss on policy draws random numbers, as dropout does.

        The order of samples in one minibatch of all changes gradients by rounding only.
        """
        if not self.is_on_policy:
            return False
        one = OneDevice(self._subject, num_minibatches=1, num_epochs=1)
        experience, results = one.experience(self.networks, self.items), []
        for seed in (_SEED, _SEED + 1):
            (loss, _), grads = one.loss_and_gradients(
                self.networks, experience, jax.random.key(seed), self.clock()
            )
            results.append(([float(loss)], [as_numpy(grads)]))
        return _relative_change(*results) > _MIN_NOISE

    @functools.cached_property
    def policy(self) -> Policy:
        """The acting on the newest trajectory's rows."""
        return Policy(self._subject, self.networks, self.items[-1])

    def experience(self, items: Sequence[RecordedTrajectory]) -> PyTree:
        """Return the agent's experience after these trajectories."""
        return self._one.experience(self.networks, items)

    def networks_of(self, attempt: int) -> Networks:
        """Return the networks of an attempt."""
        rng = np.random.default_rng(attempt)
        return (
            jax.tree.map(lambda leaf: _other_leaf(leaf, rng), self.networks)
            if attempt
            else (self.networks)
        )

    def _compute(
        self,
        items: Sequence[RecordedTrajectory],
        *,
        seed: int = _SEED,
        attempt: int = 0,
        networks: Networks | None = None,
    ) -> LossAndGradients:
        networks = self.networks_of(attempt) if networks is None else networks
        experience = self._one.experience(networks, items)
        seed += attempt
        losses, gradients = [], []
        for step in range(self._num_updates):
            key = jax.random.fold_in(jax.random.key(seed), step)
            (loss, (experience, _)), grads = self.loss_and_gradients(
                networks, experience, key, self._one.clock(items, step)
            )
            losses.append(float(loss))
            gradients.append(as_numpy(grads))
        return losses, gradients


def _other_leaf(leaf: jax.Array, rng: np.random.Generator) -> jax.Array:
    """Return parameters with noise of their size; what may be a variance stays positive."""
    if not jnp.issubdtype(leaf.dtype, jnp.floating):
        return leaf
    values = np.asarray(leaf, np.float64)
    noise = rng.normal(size=leaf.shape)
    is_signed = bool(np.any(values < 0.0))
    size = np.sqrt(np.mean(np.square(values)))
    changed = values + size * noise if is_signed else values * np.exp(0.3 * noise)
    return jnp.asarray(changed, leaf.dtype)


def _relative_change(before: LossAndGradients, after: LossAndGradients) -> float:
    pairs = [*zip(jax.tree.leaves(before[1]), jax.tree.leaves(after[1]), strict=True)]
    size = max((float(np.max(np.abs(a))) for a, _ in pairs if a.size), default=0.0)
    # A loss is a sum of terms that may cancel; with them, gradients would be of their size.
    losses = zip(before[0], after[0], strict=True)
    changes = [_distance(a, b) / max(abs(a), size, 1e-30) for a, b in losses]
    changes += [_distance(a, b) / max(size, 1e-30) for a, b in pairs if a.size]
    return max(changes)


def _distance(left: np.ndarray | float, right: np.ndarray | float) -> float:
    """Return the greatest difference; a NaN equals a NaN, and no number."""
    is_same = (left == right) | (np.isnan(left) & np.isnan(right))
    gaps = np.where(is_same, 0.0, np.abs(np.subtract(left, right)))
    return float(np.max(np.nan_to_num(gaps, nan=np.inf)))


def _has_gradient(results: LossAndGradients) -> bool:
    return any(np.any(leaf) for leaf in jax.tree.leaves(results[1]))


def _rows(experience: PyTree) -> Iterator[np.ndarray]:
    """Yield the leaves of an experience that may hold rows; others are counters."""
    yield from (leaf for leaf in jax.tree.leaves(as_numpy(experience)) if leaf.ndim > 1)
