"""Check of an entropy bonus whose weight is learned, to keep the entropy at a target."""

import math
from collections.abc import Iterator

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from sebulba.check.result import Answer, failed, passed, unclear
from sebulba.check.training import (
    Trainer,
    chosen,
    in_steps,
    in_truncated_steps,
    mean_component,
)
from sebulba.check.trees import leaf_names, with_leaf
from sebulba.types import Networks

_NUM_UPDATES = 160
LOW_TARGET_NATS = -10.0
_HIGH_TARGET = 0.99  # of the entropy of uniform actions
_MIN_CHANGE_OF_SPREAD = 0.02  # relative, which is 0.02 nats of a Gaussian's entropy
_MIN_RELATIVE_CHANGE = 1e-3  # of a gradient
_MIN_RELATIVE_EFFECT = 1e-3  # of the weight on value functions, of that of a reward
_SHIFT_OF_WEIGHT = 0.5
_SMALL_REWARD = 0.05
_MIN_SPREAD_OF_ACTIONS = 0.35  # with a positive entropy in [-1, 1]; uniform ones have 0.5


def high_target(space: gymnasium.Space) -> float:
    """Return a target entropy in nats that a policy can just reach: agents may refuse any above.

    It is a little below the entropy of uniform actions, those of a box in [-1, 1].
    """
    if isinstance(space, gymnasium.spaces.Box):
        return _HIGH_TARGET * math.prod(space.shape) * math.log(2.0)
    sizes = space.n if isinstance(space, gymnasium.spaces.Discrete) else space.nvec
    return _HIGH_TARGET * float(np.sum(np.log(sizes)))


def check_target_entropy(trainer: Trainer) -> Answer:
    """Train for a low and for a high target entropy, and compare the policies.

    The bonus has to fall with the entropy, and to count as a reward of the next action.
    """
    items = in_steps(trainer.sensitivity.items, lambda item: mean_component(item.trajectory.action))
    most = high_target(trainer.subject.run_spec.environment.action_space)
    narrow, wide = (
        Trainer(trainer.subject, trainer.sensitivity, target_entropy=target).train(
            items, num_updates=_NUM_UPDATES
        )
        for target in (LOW_TARGET_NATS, most)
    )
    low, high = trainer.policy.spread(narrow), trainer.policy.spread(wide)
    is_moved = abs(high - low) > _MIN_CHANGE_OF_SPREAD * max(high, low)
    if not is_moved and not _differ_in_a_number(trainer, narrow, wide):
        return unclear(
            f"samples are {high:.3f} from greedy actions with a target_entropy of"
            f" {most:.2g}, and {low:.3f} with {LOW_TARGET_NATS:g}: in"
            f" {_NUM_UPDATES} updates, neither the policy's entropy nor a number that is learned"
            " moves"
        )
    if not is_moved or high < low:
        return failed(
            f"networks (updates 0 … {_NUM_UPDATES - 1}): expected samples farther from greedy"
            f" actions with a target_entropy of {most:.2g} than with"
            f" {LOW_TARGET_NATS:g}, got {high:.3f} and {low:.3f}",
            "a sign in the temperature's loss, or a missing stop_gradient around the entropy in it,"
            " which then cancels the bonus",
        )
    start = trainer.sensitivity.networks
    # Other leaves, such as the weight itself, stay the same.
    narrow, wide = (chosen(trainer.policy.is_acting, each, start) for each in (narrow, wide))
    # Without a discount, the next action counts for nothing.
    looks_ahead = 0.0 not in trainer.subject.discounts
    for index in _weights(trainer, wide):
        failure = _compare_gradients(trainer, index, narrow, wide)
        if failure is None and looks_ahead and high >= _MIN_SPREAD_OF_ACTIONS:
            failure = _compare_values(trainer, index, wide)
        if failure is not None:
            return failure
    detail = f"samples are {high:.3f} from greedy actions with a high target, {low:.3f} with a low"
    return passed(f"{detail} one")


def _weights(trainer: Trainer, networks: Networks) -> Iterator[int]:
    """Yield the leaves that may be the weight of the entropy: numbers that are learned."""
    grads = trainer.mean_gradients(networks, in_truncated_steps(trainer.sensitivity.items, 0.0))
    for index, (grad, acts) in enumerate(zip(grads, trainer.policy.is_acting, strict=True)):
        if grad.ndim == 0 and grad != 0.0 and not acts:
            yield index


def _differ_in_a_number(trainer: Trainer, narrow: Networks, wide: Networks) -> bool:
    """Whether a single number that acting does not use, as the weight may be, differs clearly."""
    pairs = zip(jax.tree.leaves(narrow), jax.tree.leaves(wide), strict=True)
    return any(
        np.ndim(one) == 0 and not acts and abs(float(one) - float(other)) >= _SHIFT_OF_WEIGHT
        for (one, other), acts in zip(pairs, trainer.policy.is_acting, strict=True)
    )


def _compare_gradients(
    trainer: Trainer, index: int, narrow: Networks, wide: Networks
) -> Answer | None:
    """Compare the gradients of the weight: descent has to lower it where the entropy is high."""
    items = in_truncated_steps(trainer.sensitivity.items, 0.0)
    low, high = (
        float(trainer.mean_gradients(networks, items)[index]) for networks in (narrow, wide)
    )
    if high - low > _MIN_RELATIVE_CHANGE * max(abs(low), abs(high)):
        return None
    name = leaf_names("networks", wide)[index]
    return failed(
        f"gradient of {name} ({trainer.place}): expected it to grow with the"
        f" policy's entropy, got {high:.4g} with a high and {low:.4g} with a low entropy",
        "a sign in the temperature's loss, or a missing stop_gradient around the temperature in"
        " the policy's loss",
    )


def _compare_values(trainer: Trainer, index: int, wide: Networks) -> Answer | None:
    """Raise the weight of a positive entropy: value functions have to learn as from rewards."""
    raised = with_leaf(wide, index, lambda leaf: leaf + jnp.asarray(_SHIFT_OF_WEIGHT, leaf.dtype))

    def gradient(networks: Networks, reward: float) -> list[np.ndarray]:
        items = in_truncated_steps(trainer.sensitivity.items, reward)
        return trainer.mean_gradients(networks, items)

    base, by_reward, by_weight = (
        gradient(networks, reward)
        for networks, reward in ((wide, 0.0), (wide, _SMALL_REWARD), (raised, 0.0))
    )
    product = sum(
        float(np.sum((reward - zero) * (weight - zero)))
        for number, (zero, reward, weight) in enumerate(
            zip(base, by_reward, by_weight, strict=True)
        )
        if number != index
    )
    pairs = zip(base, by_reward, strict=True)
    size = sum(float(np.sum(np.square(reward - zero))) for zero, reward in pairs)
    if product > _MIN_RELATIVE_EFFECT * size:
        return None
    name = leaf_names("networks", wide)[index]
    return failed(
        f"{name} ({trainer.place}): expected {_SHIFT_OF_WEIGHT:g} more for the weight"
        " of the entropy to move value functions as greater rewards do, since the policy's entropy"
        f" is positive, got {product / size:.2g} times the change by a reward of {_SMALL_REWARD:g}",
        "the entropy is missing in the value of the next action, or has the wrong sign",
    )
