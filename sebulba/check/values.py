"""Checks of what a value function learns, and of what rewards and penalties do to gradients."""

import dataclasses

import gymnasium
import jax
import numpy as np

from sebulba.check.evidence import Evidence
from sebulba.check.perturbation import Perturbation, is_valid
from sebulba.check.policy import with_noise
from sebulba.check.question import Needs, Question
from sebulba.check.result import Answer, failed, passed, skipped, unclear
from sebulba.check.training import (
    OF_REWARDS,
    Trainer,
    arrays,
    chosen,
    in_steps,
    in_truncated_steps,
)
from sebulba.check.trees import leaf_names
from sebulba.check.value_function import (
    MIN_FRACTION_LEARNED,
    NUM_UPDATES,
    STEP,
    ValueFunction,
)
from sebulba.types import Networks

# Of a bootstrap value. Rows that were not learned from make it vary, but with the
# wrong sign it is about −γ.
_MIN_FRACTION_OF_DISCOUNT = 0.25
_MIN_DISCOUNT = 0.5
_MAX_WEIGHT_OF_NOTHING = 0.05  # of a bootstrap value
_MIN_WEIGHT_OF_A_SIGN = 0.5  # of the discount
_NORMALIZE_ADVANTAGES = (
    "normalize_advantages",
    "normalize_advantage",
    "standardize_advantages",
    "norm_adv",
)
_GREAT_REWARD = 100.0  # far above most values
_MAX_RELATIVE_ASYMMETRY = 0.5
_MAX_ROUNDING = 1e-4  # of a gradient, relative
_CONSTANT_REWARD = 5.0  # beside rewards of standard deviation 1
_MAX_RELATIVE_CHANGE = 0.05  # of a gradient by that constant


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Learned:
    """What came of raising and lowering all values."""

    answer: Answer
    tried: list[Networks]  # before, with higher and with lower values


def _learn(evidence: Evidence) -> _Learned:
    values, tried = evidence.shared(ValueFunction), [evidence.loss.networks]
    answer = _check_fixed_point(values, tried)
    if answer.status == "fail":
        again = _check_fixed_point(values, [evidence.loss.networks_of(1)])
        if again.status == "pass":
            answer = unclear(f"with other networks, {again.detail}")
    return _Learned(answer=answer, tried=tried)


def values(evidence: Evidence) -> Answer:
    """Learn that every action is worth 1 more, then 1 less, and look at the gradients."""
    answer = evidence.shared(_learn).answer
    if answer.status == "fail":
        return answer
    return _depends_on_policy(evidence.shared(ValueFunction)) or answer


def _check_fixed_point(values: ValueFunction, tried: list[Networks]) -> Answer:
    """Raise and lower all values, and compare the rewards that they expect at both.

    A constant part, such as a bonus of the loss itself, is in both and does not matter.
    """
    found = None
    if any(values.leaves):
        found = values.vanishing_reward(in_steps, tried[-1])
    if found is None:
        return skipped("no gradients are linear in a reward that all actions share")
    ends = []
    for step in (STEP, -STEP):
        before, reward = found, found + step
        networks, found = values.towards(reward, tried[-1], before)
        tried.append(networks)
        if (found - before) * step < -0.1 * STEP:
            # A bonus of the policy, as in Munchausen DQN, may outweigh the reward while it changes.
            difference = values.difference_by_reward(tried[-2], before)
            if difference > MIN_FRACTION_LEARNED * STEP:
                return unclear(
                    f"values fall from {before:.2f} to {found:.2f} towards {reward:.2f}, but a"
                    f" reward that is {2.0 * STEP:g} greater makes them {difference:.2f} greater"
                )
            return failed(
                f"networks ({values.trainer.place}): expected values to approach the reward"
                f" {reward:.2f} of every action, when each episode has one step, got {found:.2f}"
                f" after {before:.2f}"
            )
        ends.append((found, values.vanishing_reward(in_truncated_steps, networks, 0.0)))
    (high, high_truncated), (low, low_truncated) = ends
    if high - low < 0.5 * MIN_FRACTION_LEARNED or high_truncated is None or low_truncated is None:
        reason = f"values changed by {high - low:.2f} in {NUM_UPDATES} updates only"
        return skipped(reason)
    weight = 1.0 - (high_truncated - low_truncated) / (high - low)
    declared = values.trainer.subject.discounts
    expected = min(declared, default=_MIN_DISCOUNT)
    least = _MIN_FRACTION_OF_DISCOUNT * expected
    # A small discount cannot be told from none.
    if weight >= least or expected < _MIN_DISCOUNT:
        return passed(f"values approach rewards, and the next value weighs {weight:.2f}")
    is_stored = "the loss does not bootstrap, or from values that acting stored"
    if abs(weight) < _MAX_WEIGHT_OF_NOTHING:
        return unclear(
            "values approach rewards, but the next value of these networks weighs nothing:"
            f" {is_stored}"
        )
    # Without a stored distribution, the leaves of the policy may not all be known, and its loss
    # moves those.
    has_distributions = bool(values.trainer.policy.acted(tried[0])[1])
    is_vague = not has_distributions and _uses_extras(values.trainer)
    if is_vague and weight > -_MIN_WEIGHT_OF_A_SIGN * expected:
        return unclear(
            f"values approach rewards, but the next value weighs {weight:.2f}: {is_stored}"
        )
    return failed(
        f"trajectory.env_steps.reward (all rows, {values.trainer.place}): expected the gradients"
        f" of truncated episodes of one step to vanish at less than {1.0 - least:.2f} times the"
        f" reward of terminated ones, got {1.0 - weight:.2f} times",
        "a sign in the value loss, or the wrong sign or row of the bootstrap value (which is right"
        " in a game for two)",
    )


def _depends_on_policy(values: ValueFunction) -> Answer | None:
    """Change the policy: with episodes of one step, values have to learn the same from a replay.

    Not asked if the loss uses the stored policy, as importance weights do, if policy and value
    function have no leaves of their own, or if actions are discrete: there a leaf of the policy may
    leave every action as it was.

    The loss of the values itself may depend on the policy's actions, by a penalty (CQL) or by the
    moments of a batch (CrossQ). But values of 0 have no error when every reward is 0: a gradient
    that they have then comes from the policy's loss.
    """
    trainer = values.trainer
    if not isinstance(trainer.subject.run_spec.environment.action_space, gymnasium.spaces.Box):
        return None
    items, networks = trainer.sensitivity.items, trainer.sensitivity.networks
    has_policy = any(values.policy_leaves)
    if trainer.sensitivity.is_on_policy or not has_policy or _uses_extras(trainer):
        return None
    zeroed, steps = values.zeroed(networks), in_steps(items, STEP)
    unrewarded = trainer.mean_gradients(zeroed, in_steps(items, 0.0))
    rewarded = trainer.mean_gradients(zeroed, steps)
    if _greatest(values, unrewarded) <= _MAX_ROUNDING * _greatest(values, rewarded):
        return None
    rng = np.random.default_rng(0)
    noisy = jax.tree.map(lambda leaf: with_noise(leaf, rng), networks)
    other = chosen(values.policy_leaves, noisy, networks)
    grads, other_grads = (trainer.mean_gradients(each, steps) for each in (networks, other))
    names = leaf_names("gradient", networks)
    # Of a single leaf, such as a last bias, the errors of all rows may cancel.
    greatest = _greatest(values, grads)
    for name, is_value, grad, changed in zip(names, values.leaves, grads, other_grads, strict=True):
        if is_value and np.max(np.abs(grad - changed)) > _MAX_ROUNDING * greatest:
            return failed(
                f"{name} ({trainer.place}): expected the same with another"
                " policy, when each episode has one step, since values then learn nothing but"
                f" rewards, got a change of {np.max(np.abs(grad - changed)):.3g}, beside"
                f" {greatest:.3g}, the greatest gradient of values",
                "a stop_gradient around the value function's parameters is missing in the policy's"
                " loss",
            )
    return None


def _greatest(values: ValueFunction, grads: list[np.ndarray]) -> float:
    """Return the greatest number in the gradients of the value function."""
    pairs = zip(values.leaves, grads, strict=True)
    return max(float(np.max(np.abs(grad))) for is_value, grad in pairs if is_value)


def _uses_extras(trainer: Trainer) -> bool:
    change = Perturbation(field="extras", rows=is_valid)
    return trainer.sensitivity.has_effect(change.apply(trainer.sensitivity.items))


def symmetry(evidence: Evidence) -> Answer:
    """Double a great reward for every action, and a great penalty, and compare the gradients.

    Where they grow, they have to change in opposite directions, since the policy is the one that
    acted. The change does not depend on values, which may be as great as a normalised reward.
    """
    values, tried = evidence.shared(ValueFunction), evidence.shared(_learn).tried
    trainer = values.trainer
    names = leaf_names("gradient", tried[0])
    compared = 0
    for networks in tried:
        steps = in_steps(trainer.sensitivity.items, 0.0)
        items = trainer.policy.acted_again(networks, steps)
        rewards = (_GREAT_REWARD, 2.0 * _GREAT_REWARD, -_GREAT_REWARD, -2.0 * _GREAT_REWARD)
        gradients = [arrays(values.gradients(in_steps, networks, each, items)) for each in rewards]
        greatest = max(float(np.linalg.norm(leaf)) for leaf in gradients[0])
        if greatest == 0.0 and any(map(np.any, arrays(values.gradients(in_steps, networks, STEP)))):
            return failed(
                f"gradient ({trainer.place}): expected one with a reward of {_GREAT_REWARD:g} for"
                f" every action, as with {STEP:g}, got 0 in every leaf",
                "targets beyond the ends of a support are not clipped to them",
            )
        every = zip(names, *gradients, strict=True)
        for name, reward, more_reward, penalty, more_penalty in every:
            sizes = [np.linalg.norm(each) for each in (reward, penalty)]
            # The bias of the keys of attention, for example, has a gradient of rounding only.
            if max(sizes) <= _MAX_ROUNDING * greatest:
                continue
            more = [np.linalg.norm(each) for each in (more_reward, more_penalty)]
            if not any(b > 1.5 * a for a, b in zip(sizes, more, strict=True)):
                continue
            compared += 1
            changes = more_reward - reward, more_penalty - penalty
            first, second = (np.linalg.norm(each) for each in changes)
            asymmetry = float(np.linalg.norm(sum(changes)) / (first + second))
            if asymmetry > _MAX_RELATIVE_ASYMMETRY:
                if trainer.sensitivity.has_noise:
                    return unclear("the loss draws random numbers: its policy may be another one")
                return failed(
                    f"{name} ({trainer.place}): expected twice a reward of {_GREAT_REWARD:g} for"
                    f" every action and twice a reward of {-_GREAT_REWARD:g} to change it by"
                    f" opposite amounts, got changes of norm {first:.4g} and {second:.4g}, and"
                    f" {asymmetry * (first + second):.4g} for their sum"
                )
    if not compared:
        return skipped("no gradient grows with great rewards")
    return passed(f"opposite gradients of {compared} leaves with rewards and penalties")


def advantages(evidence: Evidence) -> Answer:
    """Add a constant to all rewards: standardised advantages of actions stay what they are."""
    subject, sensitivity = evidence.subject, evidence.loss
    if subject.setting(*_NORMALIZE_ADVANTAGES) is not True:
        return skipped("the agent has no setting `normalize_advantages`, or not true")
    settings = OF_REWARDS | {"normalize_advantages": True, "baseline_cost": 0.0}
    trainer = Trainer(subject, sensitivity, **settings)
    networks = sensitivity.networks
    rng = np.random.default_rng(subject.config.seed)
    noise = [rng.normal(size=item.trajectory.action.shape[:2]) for item in sensitivity.items]

    def gradients(constant: float) -> list[np.ndarray]:
        rewards = iter(noise)
        items = in_steps(sensitivity.items, lambda item: constant + next(rewards))
        return trainer.mean_gradients(networks, items)

    # Leaves that a value function shares may change, but not all of the policy's.
    changes = [
        float(np.max(np.abs(one - other)) / np.max(np.abs(one)))
        for one, other, acts in zip(
            gradients(0.0), gradients(_CONSTANT_REWARD), trainer.policy.is_acting, strict=True
        )
        if acts and np.any(one)
    ]
    if not changes:
        return skipped("no leaf that acting depends on has a gradient")
    if min(changes) <= _MAX_RELATIVE_CHANGE:
        return passed(
            f"a constant of {_CONSTANT_REWARD:g} changes gradients by {min(changes):.1e} only"
        )
    return failed(
        f"trajectory.env_steps.reward (all rows, {trainer.place}): expected {_CONSTANT_REWARD:g}"
        " more for every action to leave the policy's gradients as they are, when each episode has"
        f" one step (agent.normalize_advantages), got a relative change of {min(changes):.2g} or"
        " more in every leaf"
    )


VALUES = Question(
    name="values",
    ask=values,
    property="values approach rewards, and count the next value once",
    needs=Needs.TRAINING,
    perturbs=(
        f"trains with {STEP:g} more and {STEP:g} less reward for every action, in episodes of one "
        "step; moments of rewards stay as they are"
    ),
    proof="the gradients are linear in a reward that all actions share",
    expects=(
        "the reward at which gradients vanish to follow; at truncations, to be (1 − γ) times as far"
    ),
    bound=(
        f"{MIN_FRACTION_LEARNED:g} of the way is learned. A quarter of γ: rows that were not "
        "learned from make it vary, and with a wrong sign it is −γ"
    ),
    likely_cause="a sign in the value loss, or in its targets",
)

SYMMETRY = Question(
    name="symmetry",
    ask=symmetry,
    property="rewards and penalties weigh the same",
    needs=Needs.TRAINING,
    perturbs=f"rewards of ±{_GREAT_REWARD:g} for every action, and twice these",
    proof="gradients that grow by half with twice the reward",
    expects=(
        "some gradient, as a reward of 1 has; opposite changes with twice the reward and twice "
        "the penalty, since the policy is the one that acted"
    ),
    bound=(
        f"{_MAX_RELATIVE_ASYMMETRY:g} of their size: one that is clipped on one side has 1, and "
        "an expectile is as asymmetric on purpose"
    ),
    likely_cause=(
        "a bound on one side only, or a sign in the ratio or in the value loss (a loss may also "
        "be asymmetric on purpose)"
    ),
)

ADVANTAGES = Question(
    name="advantages",
    ask=advantages,
    property="standardised advantages ignore a constant reward",
    needs=Needs.TRAINING,
    perturbs=f"adds {_CONSTANT_REWARD:g} to rewards of standard deviation 1",
    proof="a leaf that acting depends on has a gradient",
    expects="the same gradients of some leaf of the policy",
    bound=(
        f"{_MAX_RELATIVE_CHANGE:g} of a gradient: without the mean it changes by about "
        f"{_CONSTANT_REWARD:g} times"
    ),
    likely_cause="the mean is not subtracted from the advantages",
)
