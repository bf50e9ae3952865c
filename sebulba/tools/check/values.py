"""Checks of value functions: which rewards they expect, with and without an episode's end.

The gradients of a value function vanish at some reward, the same for every action. With episodes of
one step, that reward is the value V itself; in an episode that never ends it is (1 − γ)·V, whatever
λ, the number of rewards in a target, and the importance weights are.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from sebulba.tools.check.names import SYMMETRY, VALUES
from sebulba.tools.check.result import CheckResult, as_numpy, failed, leaf_name, passed, skipped
from sebulba.tools.check.sensitivity import LossSensitivity
from sebulba.tools.check.subject import Subject
from sebulba.tools.check.training import Items, Trainer, in_steps, too_large, without_ends
from sebulba.types import Networks, PyTree

# One loss for all rows, in which rewards count as they are, and nothing but rewards counts.
_SETTINGS: dict[str, Any] = {
    "num_minibatches": 1,
    "num_epochs": 1,
    "entropy_cost": 0.0,
    "normalize_advantages": False,
    "reward_clip": None,
    "priority_exponent": 0.0,
}
_ROUND = 10  # updates
_MOST_ROUNDS = 20
_STEP = 1.0  # by which values are to change
_ENOUGH = 0.6  # of it
_TOLERANCE = 0.3  # of the weight of a bootstrap value
_SMALL = 0.05  # change of a reward, whose effect is linear
_GREAT = 100.0  # a reward far above any value
_MOST_ASYMMETRY = 0.5

MakeItems = Callable[..., Items]


def check_values(subject: Subject, sensitivity: LossSensitivity) -> list[CheckResult]:
    """Learn that every action is worth 1 more, then 1 less, and look at the gradients."""
    reason = too_large(subject, sensitivity)
    if reason is not None:
        return [skipped(name, reason) for name in (VALUES, SYMMETRY)]
    values = _Values(Trainer(subject, sensitivity, **_SETTINGS))
    tried = [sensitivity.networks]
    result = _check_fixed_point(values, tried)
    return [result, _check_symmetry(values, tried)]


class _Values:
    """The value function of a trainer's agent."""

    def __init__(self, trainer: Trainer):
        self.trainer = trainer

    @functools.cached_property
    def leaves(self) -> list[bool]:
        """Which leaves have a gradient that depends on constant rewards.

        Without those that acting depends on, if there are others: policies would change as well.
        """
        networks = self.trainer.sensitivity.networks
        pair = [_leaves(self.gradients(in_steps, networks, reward)) for reward in (0.0, _STEP)]
        depends = [not np.array_equal(a, b) for a, b in zip(*pair, strict=True)]
        apart = [a and not b for a, b in zip(depends, self.trainer.is_acting, strict=True)]
        return apart if any(apart) else depends

    @functools.cached_property
    def _learned_leaves(self) -> list[bool]:
        """The leaves of the value function, and its target networks."""
        networks = self.trainer.sensitivity.networks
        grads = _leaves(self.gradients(in_steps, networks, _STEP))
        rest = zip(self.leaves, grads, self.trainer.is_acting, strict=True)
        return [is_value or not (np.any(grad) or acts) for is_value, grad, acts in rest]

    def gradients(self, make: MakeItems, networks: Networks, reward: float) -> PyTree:
        """Return the gradients of the loss with the same reward for every action."""
        items = make(self.trainer.sensitivity.items, lambda item: reward)
        return self.trainer.gradients(networks, self.trainer.experience(networks, items))[0]

    def vanishing_reward(
        self, make: MakeItems, networks: Networks, near: float = 0.0
    ) -> float | None:
        """Return the reward at which the gradients vanish; None: they are not linear in it."""
        lower, middle, upper = (
            self._flat(self.gradients(make, networks, near + change))
            for change in (-_SMALL, 0.0, _SMALL)
        )
        slope = (upper - lower) / (2.0 * _SMALL)
        size = float(slope @ slope)
        error = np.linalg.norm(middle - 0.5 * (lower + upper)) / _SMALL
        if size == 0.0 or error > 0.1 * np.sqrt(size):
            return None
        return near - float(middle @ slope) / size

    def _flat(self, grads: PyTree) -> np.ndarray:
        pairs = zip(self.leaves, _leaves(grads), strict=True)
        return np.concatenate([leaf.reshape(-1).astype(np.float64) for is_, leaf in pairs if is_])

    def towards(self, reward: float, networks: Networks, start: float) -> tuple[Networks, float]:
        """Learn for a while that every action has this reward.

        Args:
            reward: of every action.
            networks: before.
            start: the vanishing reward before.

        Returns:
            Networks, and the vanishing reward, after it.
        """
        items = in_steps(self.trainer.sensitivity.items, lambda item: reward)
        value = start
        for _ in range(_MOST_ROUNDS):
            networks = self.trainer.train(
                items, networks, num_updates=_ROUND, leaves=self._learned_leaves
            )
            found = self.vanishing_reward(in_steps, networks, value)
            if found is None:
                break
            value = found
            if abs(value - start) > _ENOUGH * abs(reward - start):
                break
        return networks, value


def _check_fixed_point(values: _Values, tried: list[Networks]) -> CheckResult:
    """Raise and lower all values, and compare the rewards that they expect at both.

    A constant part, such as a bonus of the loss itself, is in both and does not matter.
    """
    found = None
    if any(values.leaves):
        found = values.vanishing_reward(in_steps, tried[-1])
    if found is None:
        return skipped(VALUES, "no gradients are linear in a reward that all actions share")
    ends = []
    for step in (_STEP, -_STEP):
        before, reward = found, found + step
        networks, found = values.towards(reward, tried[-1], before)
        tried.append(networks)
        if (found - before) * step < -0.1 * _STEP:
            return failed(
                VALUES,
                f"networks ({values.trainer.place}): expected values to approach the reward"
                f" {reward:.2f} of every action, when each episode has one step, got {found:.2f}"
                f" after {before:.2f}; likely cause: a sign in the value loss, or in its targets",
            )
        ends.append((found, values.vanishing_reward(without_ends, networks, 0.0)))
    (high, high_endless), (low, low_endless) = ends
    if high - low < 0.5 * _ENOUGH or high_endless is None or low_endless is None:
        reason = f"values changed by {high - low:.2f} in {_MOST_ROUNDS * _ROUND} updates only"
        return skipped(VALUES, reason)
    weight = 1.0 - (high_endless - low_endless) / (high - low)
    discount = values.trainer.subject.setting("discount", "gamma")
    expected = discount if isinstance(discount, float) else 1.0
    if abs(weight - expected) <= _TOLERANCE:
        return passed(
            VALUES,
            f"values approach rewards, and the next value weighs {weight:.2f} (γ {expected:g})",
        )
    return failed(
        VALUES,
        f"trajectory.env_steps.reward (all rows, {values.trainer.place}): expected the gradients"
        f" of episodes that never end to vanish at {1.0 - expected:.2f} times the reward of"
        f" episodes of one step, got {1.0 - weight:.2f} times; likely cause: a sign in the value"
        " loss or in the bootstrap value, or a value of the wrong row",
    )


def _check_symmetry(values: _Values, tried: list[Networks]) -> CheckResult:
    """Compare the gradients with a great reward for every action, and with a great penalty.

    Those that grow with the reward have to be opposite, since the policy is the one that acted.
    """
    trainer = values.trainer
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(tried[0])]
    compared = 0
    for networks in tried:
        items = trainer.acted_again(networks, trainer.sensitivity.items)

        def gradients(reward: float) -> list[np.ndarray]:
            changed = in_steps(items, lambda item: reward)
            return _leaves(trainer.gradients(networks, trainer.experience(networks, changed))[0])

        rewards = (_GREAT, 2.0 * _GREAT, -_GREAT, -2.0 * _GREAT)
        every = zip(paths, *map(gradients, rewards), strict=True)
        for path, reward, more_reward, penalty, more_penalty in every:
            sizes = [np.linalg.norm(each) for each in (reward, penalty)]
            more = [np.linalg.norm(each) for each in (more_reward, more_penalty)]
            if not any(b > 1.5 * a for a, b in zip(sizes, more, strict=True)):
                continue
            compared += 1
            asymmetry = float(np.linalg.norm(reward + penalty) / sum(sizes))
            if asymmetry > _MOST_ASYMMETRY:
                return failed(
                    SYMMETRY,
                    f"{leaf_name('gradient', path)} ({trainer.place}): expected opposite gradients"
                    f" with a reward of {_GREAT:g} and of {-_GREAT:g} for every action, got norms"
                    f" of {sizes[0]:.4g} and {sizes[1]:.4g}, and of {asymmetry * sum(sizes):.4g}"
                    " for their sum; likely cause: a bound on one side only, or a sign in the ratio"
                    " or in the value loss (a loss may also be asymmetric on purpose)",
                )
    if not compared:
        return skipped(SYMMETRY, "no gradient grows with great rewards")
    return passed(SYMMETRY, f"opposite gradients of {compared} leaves with rewards and penalties")


def _leaves(tree: PyTree) -> list[np.ndarray]:
    return jax.tree.leaves(as_numpy(tree))
