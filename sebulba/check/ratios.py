"""Check of importance weights: the likelier an action was when it was taken, the less it counts.

Every episode has one step, and the policy is the one that acted, so all importance weights are 1.
Then the stored policy says that some actions were e^δ times as likely. Their rewards have to count
e^−δ times as much, unless weights are clipped.
"""

import dataclasses
from collections.abc import Iterator, Sequence

import jax
import numpy as np

from sebulba.check.evidence import Evidence
from sebulba.check.question import Needs, Question
from sebulba.check.recording import RecordedTrajectory
from sebulba.check.result import Answer, as_numpy, failed, passed, skipped, unclear
from sebulba.check.stored_policy import (
    MAX_PROBABILITY,
    SHIFT_NATS,
    greatest_probability,
    stored_policies,
    with_likelier,
)
from sebulba.check.training import (
    Trainer,
    differences,
    factor_between,
    in_steps,
    reward_trainer,
)
from sebulba.check.trees import leaf_names

_SHIFT = SHIFT_NATS  # δ
_MIN_ACTIONS = 4
_REWARD = 100.0  # far above any value, so that the advantage is positive
_SPREAD = 0.3  # of rewards, relative
_TOLERANCE = 0.02  # of a weight
_MIN_CHANGE = 0.25  # of a weight, which a value function cannot hide
_ATTEMPTS = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Weights:
    """How much rewards of some actions count in the gradient of a leaf, relative to before.

    NaN if the gradients differ in more than their size.
    """

    likelier: float  # if these actions were e^δ times as likely
    rarer: float  # if they were e^−δ times as likely
    leaf: str
    acts: bool  # whether acting depends on the leaf

    @property
    def is_measured(self) -> bool:
        return not np.isnan(self.likelier + self.rarer)

    @property
    def is_same(self) -> bool:
        gaps = abs(self.likelier - 1.0), abs(self.rarer - 1.0)
        return self.is_measured and max(gaps) <= _TOLERANCE

    @property
    def is_clipped_wrongly(self) -> bool:
        """Whether only rarer actions count otherwise.

        No sum of a policy's and a value function's gradients does so if neither of them does.
        """
        is_weightless = abs(self.likelier - 1.0) <= _TOLERANCE
        return is_weightless and self.rarer >= -_TOLERANCE and abs(self.rarer - 1.0) > _MIN_CHANGE

    @property
    def is_repeated(self) -> bool:
        """Whether likelier actions count e^−2δ or e^−3δ times as much."""
        powers = (np.exp(-_SHIFT * times) for times in (2, 3))
        return any(abs(self.likelier - power) <= _TOLERANCE * power for power in powers)

    @property
    def is_excessive(self) -> bool:
        """Whether likelier actions count more, or rarer ones more than e^δ times as much."""
        is_opposite = self.likelier > 1.0 + _TOLERANCE and 0.0 < self.rarer < 1.0 - _TOLERANCE
        return is_opposite or self.rarer > np.exp(_SHIFT) + _TOLERANCE


def ratios(evidence: Evidence) -> Answer:
    """Raise and lower stored probabilities of actions, and see how much their rewards count."""
    items = evidence.loss.items
    if not any(map(stored_policies, items)):
        return skipped("the extras have no policy of sebulba.toolkit, and no log_prob of shape [B]")
    if not evidence.loss.is_on_policy:
        return skipped("a replay may hold policies to learn from, which weigh nothing")
    trainer = evidence.shared(reward_trainer)
    wrong: list[_Weights] = []
    is_weighed = False
    for attempt in range(_ATTEMPTS):
        found = [each for each in _measure(trainer, attempt) if not each.is_same]
        is_weighed |= bool(found)
        measured = [each for each in found if each.is_measured]
        faults = [each for each in measured if each.is_clipped_wrongly]
        policies = [each for each in measured if each.acts]
        if all(each.is_excessive for each in policies) or all(
            each.is_repeated for each in policies
        ):
            faults += policies
        lighter = [each for each in measured if each.likelier < 1.0 - _TOLERANCE]
        if lighter and not faults:
            each = lighter[0]
            return passed(
                f"rewards of actions e^{_SHIFT:g} times as likely count {each.likelier:.2f} times"
                f" as much, and {each.rarer:.2f} times if the actions are as much rarer"
            )
        wrong += faults[:1]
    if not is_weighed:
        return skipped("no reward counts more or less with another stored policy")
    if not wrong:
        return unclear("rewards count otherwise with another stored policy, but not by a weight")
    each = wrong[0]
    bound = "and not a power of that" if each.is_repeated else "or less"
    detail = (
        f"{each.leaf} ({trainer.place}): expected rewards of actions to count"
        f" {np.exp(-_SHIFT):.2f} times as much where trajectory.extras say that the actions were"
        f" e^{_SHIFT:g} times as likely, {bound}, got {each.likelier:.2f} times, and"
        f" {each.rarer:.2f} times where they were as much rarer"
    )
    return failed(detail) if len(wrong) > 1 else unclear(f"{detail}, with some networks only")


def _measure(trainer: Trainer, attempt: int) -> Iterator[_Weights]:
    """Yield the weights in each leaf that has a gradient of rewards."""
    sensitivity = trainer.sensitivity
    networks, first = sensitivity.networks_of(attempt), sensitivity.num_unlearned
    steps = in_steps(sensitivity.items, 0.0)
    items = trainer.policy.acted_again(networks, steps)[first:]
    signs = _chosen(items, np.random.default_rng(attempt))

    def gradients(shift: float, spread: float) -> list[np.ndarray]:
        rewards = iter(_REWARD * np.where(sign, 1.0 + spread * sign, -1.0) for sign in signs)
        changed = [
            with_likelier(item, np.float32(shift) * np.abs(sign))
            for item, sign in zip(in_steps(items, lambda item: next(rewards)), signs, strict=True)
        ]
        experience = trainer.experience(networks, [*steps[:first], *changed])
        grads, _ = trainer.gradients(networks, experience)
        return [leaf.astype(np.float64) for leaf in jax.tree.leaves(as_numpy(grads))]

    def effect(shift: float) -> list[np.ndarray]:
        """Return what other rewards of the same mean and standard deviation change."""
        return differences(gradients(shift, _SPREAD), gradients(shift, -_SPREAD))

    if sum(np.count_nonzero(sign) for sign in signs) < _MIN_ACTIONS:
        return
    names = leaf_names("gradient", networks)
    effects = map(effect, (0.0, _SHIFT, -_SHIFT))
    for name, acts, before, *after in zip(names, trainer.policy.is_acting, *effects, strict=True):
        # One number has no direction.
        if before.size > 1 and np.any(before):
            likelier, rarer = (factor_between(before, each) for each in after)
            yield _Weights(likelier=likelier, rarer=rarer, leaf=name, acts=acts)


def _chosen(items: Sequence[RecordedTrajectory], rng: np.random.Generator) -> list[np.ndarray]:
    """Return 1 and −1 equally often for half of the actions, and 0 for the others: `[T, B]`."""
    may_change = [
        item.trajectory.valid & (greatest_probability(item) <= MAX_PROBABILITY) for item in items
    ]
    places = rng.permutation(np.argwhere(may_change))
    places = places[: len(places) // 4 * 2]
    signs = np.zeros(np.shape(may_change), np.float32)
    signs[tuple(places.T)] = np.resize([1.0, -1.0], len(places))
    return [*signs]


RATIOS = Question(
    name="ratios",
    ask=ratios,
    property="the likelier an action was, the less it counts",
    needs=Needs.GRADIENT,
    perturbs=f"adds ±{_SHIFT:g} to stored log-probabilities of half of the actions",
    proof=(
        f"{_MIN_ACTIONS} actions with a probability of {MAX_PROBABILITY:g} or less, which may be "
        f"e^{_SHIFT:g} times as likely"
    ),
    expects=(
        f"their rewards to count e^−{_SHIFT:g} times as much, or as before where weights are "
        "clipped"
    ),
    bound=(
        f"{_TOLERANCE:g} of a weight: gradients of two rewards differ in float32's last digits; "
        f"{_MIN_CHANGE:g} where a value function may hide a part"
    ),
    likely_cause=(
        "behaviour and proximal policy are exchanged, or a weight counts twice or is clipped on "
        "the wrong side"
    ),
)
