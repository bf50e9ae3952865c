"""Check of what the policy's gradient takes from the value function, apart from what values learn.

Every advantage is r + γV(s') − V(s) in a truncated episode of one step, and r − V(s) in one that
terminates, whatever λ and the number of rewards in a target are, since the policy is the one that
acted. A shift of all values, by the last bias of the value function, then moves the policy's
gradient as some reward does.
"""

import dataclasses
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from sebulba.check.evidence import Evidence
from sebulba.check.perturbation import Perturbation, is_truncated
from sebulba.check.question import Needs, Question
from sebulba.check.result import Answer, failed, passed, skipped, unclear
from sebulba.check.training import (
    Items,
    arrays,
    differences,
    factor_between,
    in_steps,
    in_truncated_steps,
)
from sebulba.check.trees import leaf_names, with_leaf
from sebulba.check.value_function import MakeItems, ValueFunction
from sebulba.types import Networks

_SHIFT = 0.5  # of all values, and of all rewards
_TOLERANCE = 0.02  # of a weight
_MIN_EFFECT = 1e-3  # of other final observations on what values learn, relative
_ATTEMPTS = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Weights:
    """How much values count in the gradient of a leaf in which a reward counts 1.

    NaN if they do not move the gradient as rewards do.
    """

    leaf: str
    baseline: float  # of V(s)
    bootstrap: float  # of V(s')
    reads_final: bool  # whether final observations change the gradient, or not even values

    @property
    def has_baseline(self) -> bool:
        """Whether V(s) is subtracted once.

        It is not where an agent has no baseline, or several value functions with a part each.
        """
        return abs(self.baseline + 1.0) <= _TOLERANCE

    @property
    def bootstraps(self) -> bool:
        return abs(self.bootstrap) > _TOLERANCE

    def fault(self, least: float, greatest: float) -> str | None:
        """Return what is wrong if the discount is in this range; None: nothing."""
        if abs(self.baseline - 1.0) <= _TOLERANCE:
            return f"the weight −1 for V(s) beside a reward, got {self.baseline:.3f}"
        if not self.has_baseline or not self.bootstraps:
            return None
        if not least - _TOLERANCE <= self.bootstrap <= greatest + _TOLERANCE:
            return f"the weight {greatest:.3f} for V(s') beside a reward, got {self.bootstrap:.3f}"
        return None if self.reads_final else "V(s') of the final observation, got another value"


def baseline(evidence: Evidence) -> Answer:
    """Shift all values, and see what that does to the policy's gradient."""
    values = evidence.shared(ValueFunction)
    discounts = evidence.subject.discounts
    if not evidence.loss.is_on_policy or not values.is_apart or not discounts:
        return skipped("the agent has a replay, no discount, or no value function apart")
    least, greatest = min(discounts), max(discounts)
    found: list[_Weights] = []
    wrong: list[str] = []
    for attempt in range(_ATTEMPTS):
        weights = [*_measure(values, evidence.loss.networks_of(attempt))]
        faults = [(each.leaf, each.fault(least, greatest)) for each in weights]
        found += weights
        wrong += [
            f"{leaf} ({values.trainer.place}): expected {fault}, when each episode has one step"
            for leaf, fault in faults
            if fault is not None
        ][:1]
    if len(wrong) == _ATTEMPTS:
        return failed(wrong[0])
    if wrong:
        return unclear(f"{wrong[0]}, with some networks only")
    right = [each for each in found if each.has_baseline]
    if not right:
        return skipped("no gradient of the policy moves with all values as with rewards")
    each = right[0]
    return passed(
        f"beside a reward, V(s) has the weight {each.baseline:.3f} in the policy's gradient, and"
        f" V(s') {each.bootstrap:.3f}"
    )


def _measure(values: ValueFunction, networks: Networks) -> Iterator[_Weights]:
    """Yield the weights of values in each leaf that acting depends on."""
    policy, recorded = values.trainer.policy, values.trainer.sensitivity.items
    rounding = values.trainer.sensitivity.rounding
    shifted = _shifted(values, networks)
    if shifted is None:
        return
    (higher, lower), shift = shifted

    def gradients(
        make: MakeItems, networks: Networks, reward: float = 0.0, items: Items = recorded
    ) -> list[np.ndarray]:
        # With these networks, since acting may store values.
        acted = policy.acted_again(networks, make(items, 0.0))
        grads = arrays(values.gradients(make, networks, reward, acted))
        return [leaf.astype(np.float64) for leaf in grads]

    def factors(make: MakeItems) -> list[float]:
        """Return the effect of values on each leaf, relative to that of rewards."""
        by_reward = differences(*(gradients(make, networks, size) for size in (_SHIFT, -_SHIFT)))
        by_value = differences(*(gradients(make, each) for each in (higher, lower)))
        return [
            factor_between(one, other) / (shift / _SHIFT)
            if one.size > 1 and np.any(one)
            else np.nan
            for one, other in zip(by_reward, by_value, strict=True)
        ]

    final = Perturbation(field="observation", rows=is_truncated)
    truncated = in_truncated_steps(recorded, 0.0)
    before = gradients(in_truncated_steps, networks, _SHIFT)
    after = gradients(in_truncated_steps, networks, _SHIFT, final.apply(truncated))
    changes = [
        np.linalg.norm(b - a) / max(float(np.linalg.norm(a)), 1e-30)
        for a, b in zip(before, after, strict=True)
    ]
    pairs = zip(values.leaves, changes, strict=True)
    values_change = max(change for is_value, change in pairs if is_value) > _MIN_EFFECT
    names = leaf_names("gradient", networks)
    weights = zip(factors(in_steps), factors(in_truncated_steps), strict=True)
    for name, acts, change, (at_termination, at_truncation) in zip(
        names, policy.is_acting, changes, weights, strict=True
    ):
        if acts and not np.isnan(at_termination + at_truncation):
            yield _Weights(
                leaf=name,
                baseline=at_termination,
                bootstrap=at_truncation - at_termination,
                reads_final=bool(change > rounding or not values_change),
            )


def _shifted(
    values: ValueFunction, networks: Networks
) -> tuple[tuple[Networks, Networks], float] | None:
    """Return networks with higher and with lower values, and half the difference of the values.

    They differ in the last bias of the value function: its only leaf of one element.
    """

    def with_output(index: int, size: float) -> Networks:
        return with_leaf(networks, index, lambda leaf: leaf + jnp.asarray(size, leaf.dtype))

    pairs = zip(values.leaves, jax.tree.leaves(networks), strict=True)
    for index, (is_value, leaf) in enumerate(pairs):
        if is_value and leaf.size == 1:
            ends = with_output(index, _SHIFT), with_output(index, -_SHIFT)
            high, low = (values.vanishing_reward(in_steps, each) for each in ends)
            if high is not None and low is not None and high != low:
                return ends, (high - low) / 2.0
    return None


BASELINE = Question(
    name="baseline",
    ask=baseline,
    property="the policy's gradient subtracts a value, and adds the next",
    needs=Needs.TRAINING,
    perturbs=(
        f"shifts all values, by the value function's last bias, and all rewards, by {_SHIFT:g}"
    ),
    proof="the shift of values is measured by the reward at which their gradients vanish",
    expects=("1 more of all values to count as 1 less of all rewards, and γ more of the next ones"),
    bound=(
        f"{_TOLERANCE:g} of a weight: two digits of differences of float32 gradients; with two "
        "networks"
    ),
    likely_cause="advantages are computed otherwise than what values learn",
)
