"""Checks of value functions: which rewards they expect, with and without an episode's end.

The gradients of a value function vanish at some reward, the same for every action. With episodes of
one step, that reward is the value V itself if the episode terminates, and (1 − γ)·V if it is
truncated, whatever λ, the number of rewards in a target, and the importance weights are.
"""

import functools
from collections.abc import Callable

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from sebulba.check.evidence import Evidence
from sebulba.check.perturbation import Perturbation, is_valid
from sebulba.check.policy import with_noise
from sebulba.check.result import Answer, as_numpy, failed, leaf_name, passed, skipped, unclear
from sebulba.check.training import (
    OF_REWARDS,
    Items,
    Trainer,
    chosen,
    in_steps,
    in_truncated_steps,
    reward_trainer,
)
from sebulba.types import Networks, PyTree

_UPDATES_PER_ROUND = 10
_MAX_ROUNDS = 20
_STEP = 1.0  # of values
_MIN_FRACTION_LEARNED = 0.6  # of the step
# Of a bootstrap value. Rows that were not learned from make it vary, but with the
# wrong sign it is about −γ.
_MIN_FRACTION_OF_DISCOUNT = 0.25
_MIN_DISCOUNT = 0.5
_MAX_WEIGHT_OF_NOTHING = 0.05  # of a bootstrap value
_MIN_WEIGHT_OF_A_SIGN = 0.5  # of the discount
_SMALL_REWARD = 0.05  # with an effect that is linear
_MAX_RELATIVE_BEND = 0.5  # of gradients that count as linear
_GREAT_REWARD = 100.0  # far above any value
_MAX_RELATIVE_ASYMMETRY = 0.5
_MAX_OUTPUTS = 16  # of a target network, as biases
_MAX_ERROR_OF_SHARE = 0.05  # of the effect of an output in that of a reward
_MAX_ROUNDING = 1e-4  # of a gradient, relative
_CONSTANT_REWARD = 5.0  # beside rewards of standard deviation 1
_MAX_RELATIVE_CHANGE = 0.05  # of a gradient by that constant

MakeItems = Callable[..., Items]


def values(evidence: Evidence) -> Answer:
    """Learn that every action is worth 1 more, then 1 less, and look at the gradients."""
    values = evidence.shared(_Values)
    answer = values.fixed_point
    return answer if answer.status == "fail" else _depends_on_policy(values) or answer


class _Values:
    """The value function of the agent, and networks in which values are higher and lower."""

    def __init__(self, evidence: Evidence):
        self.trainer = evidence.shared(reward_trainer)
        self.tried = [evidence.loss.networks]
        self.fixed_point = _check_fixed_point(self, self.tried)
        if self.fixed_point.status == "fail":
            again = _check_fixed_point(self, [evidence.loss.networks_of(1)])
            if again.status == "pass":
                self.fixed_point = unclear(f"with other networks, {again.detail}")

    @functools.cached_property
    def leaves(self) -> list[bool]:
        """Which leaves have a gradient that depends on constant rewards.

        Without those that acting depends on, if there are others: policies would change as well.
        """
        networks = self.trainer.sensitivity.networks
        pair = [_leaves(self.gradients(in_steps, networks, reward)) for reward in (0.0, _STEP)]
        depends = [not np.array_equal(a, b) for a, b in zip(*pair, strict=True)]
        apart = [a and not b for a, b in zip(depends, self.trainer.policy.is_acting, strict=True)]
        return apart if any(apart) else depends

    @functools.cached_property
    def is_apart(self) -> bool:
        """Whether there are leaves of a value function, and acting depends on none of them."""
        pairs = zip(self.leaves, self.trainer.policy.is_acting, strict=True)
        return any(self.leaves) and not any(is_value and acts for is_value, acts in pairs)

    @functools.cached_property
    def _learned_leaves(self) -> list[bool]:
        """The leaves of the value function, and its target networks."""
        networks = self.trainer.sensitivity.networks
        grads = _leaves(self.gradients(in_steps, networks, _STEP))
        rest = zip(self.leaves, grads, self.trainer.policy.is_acting, strict=True)
        return [is_value or not (np.any(grad) or acts) for is_value, grad, acts in rest]

    def gradients(
        self, make: MakeItems, networks: Networks, reward: float, items: Items | None = None
    ) -> PyTree:
        """Return the gradients of the loss with the same reward for every action.

        Args:
            make: `in_steps` or `in_truncated_steps`.
            networks: differentiated.
            reward: of every action.
            items: trajectories; None: the recorded ones.
        """
        items = make(items or self.trainer.sensitivity.items, lambda item: reward)
        return self.trainer.gradients(networks, self.trainer.experience(networks, items))[0]

    def vanishing_reward(
        self, make: MakeItems, networks: Networks, near: float = 0.0
    ) -> float | None:
        """Return the reward at which the gradients vanish; None: they are not linear in it."""
        lower, middle, upper = (
            self._flat(self.gradients(make, networks, near + change))
            for change in (-_SMALL_REWARD, 0.0, _SMALL_REWARD)
        )
        slope = (upper - lower) / (2.0 * _SMALL_REWARD)
        size = float(slope @ slope)
        error = np.linalg.norm(middle - 0.5 * (lower + upper)) / _SMALL_REWARD
        if size == 0.0 or error > _MAX_RELATIVE_BEND * np.sqrt(size):
            return None
        return near - float(middle @ slope) / size

    def _flat(self, grads: PyTree) -> np.ndarray:
        pairs = zip(self.leaves, _leaves(grads), strict=True)
        return np.concatenate([leaf.reshape(-1).astype(np.float64) for is_, leaf in pairs if is_])

    def difference_by_reward(self, networks: Networks, near: float) -> float:
        """Return how much greater values get by learning `_STEP` more than `near`, than by less."""
        ends = []
        for reward in (near + _STEP, near - _STEP):
            items = in_steps(self.trainer.sensitivity.items, functools.partial(_same, reward))
            trained = self.trainer.train(
                items,
                networks,
                num_updates=_MAX_ROUNDS * _UPDATES_PER_ROUND,
                leaves=self._learned_leaves,
            )
            ends.append(self.vanishing_reward(in_steps, trained, reward))
        high, low = ends
        return 0.0 if high is None or low is None else high - low

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
        for _ in range(_MAX_ROUNDS):
            networks = self.trainer.train(
                items, networks, num_updates=_UPDATES_PER_ROUND, leaves=self._learned_leaves
            )
            found = self.vanishing_reward(in_steps, networks, value)
            if found is None:
                break
            # Once more: rescaled values are not linear in rewards.
            value = self.vanishing_reward(in_steps, networks, found) or found
            if abs(value - start) > _MIN_FRACTION_LEARNED * abs(reward - start):
                break
        return self.trainer.settled(networks, items, self._learned_leaves), value


def _check_fixed_point(values: _Values, tried: list[Networks]) -> Answer:
    """Raise and lower all values, and compare the rewards that they expect at both.

    A constant part, such as a bonus of the loss itself, is in both and does not matter.
    """
    found = None
    if any(values.leaves):
        found = values.vanishing_reward(in_steps, tried[-1])
    if found is None:
        return skipped("no gradients are linear in a reward that all actions share")
    ends = []
    for step in (_STEP, -_STEP):
        before, reward = found, found + step
        networks, found = values.towards(reward, tried[-1], before)
        tried.append(networks)
        if (found - before) * step < -0.1 * _STEP:
            # A bonus of the policy, as in Munchausen DQN, may outweigh the reward while it changes.
            difference = values.difference_by_reward(tried[-2], before)
            if difference > _MIN_FRACTION_LEARNED * _STEP:
                return unclear(
                    f"values fall from {before:.2f} to {found:.2f} towards {reward:.2f}, but a"
                    f" reward that is {2.0 * _STEP:g} greater makes them {difference:.2f} greater"
                )
            return failed(
                f"networks ({values.trainer.place}): expected values to approach the reward"
                f" {reward:.2f} of every action, when each episode has one step, got {found:.2f}"
                f" after {before:.2f}"
            )
        ends.append((found, values.vanishing_reward(in_truncated_steps, networks, 0.0)))
    (high, high_truncated), (low, low_truncated) = ends
    if high - low < 0.5 * _MIN_FRACTION_LEARNED or high_truncated is None or low_truncated is None:
        reason = (
            f"values changed by {high - low:.2f} in {_MAX_ROUNDS * _UPDATES_PER_ROUND} updates only"
        )
        return skipped(reason)
    weight = 1.0 - (high_truncated - low_truncated) / (high - low)
    declared = values.trainer.subject.numbers("discount", "gamma")
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


def _depends_on_policy(values: _Values) -> Answer | None:
    """Change the policy: with episodes of one step, values have to learn the same from a replay.

    Not asked if the loss uses the stored policy, as importance weights do, or if actions are
    discrete: there a leaf of the policy may leave every action as it was, and agents that learn
    action values have no leaves of a value function apart from it.
    """
    trainer = values.trainer
    if not isinstance(trainer.subject.run_spec.environment.action_space, gymnasium.spaces.Box):
        return None
    items, networks = trainer.sensitivity.items, trainer.sensitivity.networks
    if trainer.sensitivity.is_on_policy or not values.is_apart or _uses_extras(trainer):
        return None
    rng = np.random.default_rng(0)
    noisy = jax.tree.map(lambda leaf: with_noise(leaf, rng), networks)
    other = chosen(trainer.policy.is_acting, noisy, networks)
    steps = in_steps(items, lambda item: _STEP)
    grads, other_grads = (trainer.mean_gradients(each, steps) for each in (networks, other))
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(networks)]
    for path, is_value, grad, changed in zip(paths, values.leaves, grads, other_grads, strict=True):
        if is_value and np.max(np.abs(grad - changed)) > _MAX_ROUNDING * np.max(np.abs(grad)):
            return failed(
                f"{leaf_name('gradient', path)} ({trainer.place}): expected the same with another"
                " policy, when each episode has one step, since values then learn nothing but"
                f" rewards, got a change of {np.max(np.abs(grad - changed)):.3g} of"
                f" {np.max(np.abs(grad)):.3g}",
                "a stop_gradient around the value function's parameters is missing in the policy's"
                " loss",
            )
    return None


def _uses_extras(trainer: Trainer) -> bool:
    changed = Perturbation(
        field="extras",
        rows=is_valid,
        action_space=trainer.subject.run_spec.environment.action_space,
    ).apply(trainer.sensitivity.items)
    return trainer.sensitivity.has_effect(changed)


def next_values(evidence: Evidence) -> Answer:
    """Change stored actions, which bootstrap values ignore, and then bootstrap values alone.

    Not asked on policy, where the next action is the one taken, nor of discrete actions, where the
    next value is the greatest of several on purpose.
    """
    values = evidence.shared(_Values)
    space = evidence.subject.run_spec.environment.action_space
    is_box = isinstance(space, gymnasium.spaces.Box)
    if not is_box or evidence.loss.is_on_policy or not values.is_apart:
        return skipped("the agent has no replay of continuous actions and a value function apart")
    trainer, networks = values.trainer, evidence.loss.networks
    # Values of 0, whatever the action is: gradients depend on the targets alone.
    nothing = chosen(values.leaves, jax.tree.map(jnp.zeros_like, networks), networks)
    items = in_truncated_steps(evidence.loss.items, lambda item: _STEP)
    change = Perturbation(field="action", rows=is_valid, action_space=space)
    same, other = (trainer.mean_gradients(nothing, each) for each in (items, change.apply(items)))
    rest = zip(values.leaves, same, other, strict=True)
    pairs = [(np.abs(one), np.abs(one - two)) for is_value, one, two in rest if is_value]
    size, got = (max(float(np.max(pair[side])) for pair in pairs) for side in (0, 1))
    if got > _MAX_ROUNDING * size:
        return failed(
            f"trajectory.action ({trainer.place}): expected targets of values to ignore the actions"
            f" of truncated episodes of one step, got a change of {got / size:.1g} of the gradients"
            " with other actions",
            "the value of the next observation is that of a stored action, not of the policy's",
        )
    discount = evidence.subject.setting("discount", "gamma")
    if isinstance(discount, float) and discount >= _MIN_DISCOUNT:
        # Twice: a hidden unit may count like an output by chance.
        found = [
            _greatest(trainer, each, discount) for each in (networks, evidence.loss.networks_of(1))
        ]
        if all(len(names) > 1 for names in found):
            return failed(
                f"{', '.join(found[0])} ({trainer.place}): expected a lower one to lower bootstrap"
                f" values, got an effect with {_GREAT_REWARD:g} more, and none with"
                f" {_GREAT_REWARD:g} less",
                "the target takes the greater of several values, not the lesser",
            )
    return passed("targets ignore stored actions, and take no greatest value")


def _greatest(trainer: Trainer, networks: Networks, discount: float) -> list[str]:
    """Return the outputs of target networks of which the greatest counts.

    Such an output moves bootstrap values if it is raised far, and not if it is lowered far.
    """

    def effect(networks: Networks, reward: float = 0.0) -> np.ndarray:
        items = in_truncated_steps(trainer.sensitivity.items, lambda item: reward)
        grads = trainer.mean_gradients(networks, items)
        return np.concatenate([grad.reshape(-1).astype(np.float64) for grad in grads])

    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(networks)]
    leaves, structure = jax.tree.flatten(networks)
    has_gradient = trainer.sensitivity.has_gradients(networks)
    base, found = effect(networks), []
    both = (_GREAT_REWARD, -_GREAT_REWARD)
    sizes = [float(np.linalg.norm(effect(networks, far) - base)) for far in both]
    for number, leaf in enumerate(leaves):
        if has_gradient[number] or not 0 < leaf.size <= _MAX_OUTPUTS or not leaf.ndim:
            continue
        for place in np.ndindex(leaf.shape):
            shares = []
            for far, size in zip(both, sizes, strict=True):
                shifted = [*leaves]
                shifted[number] = leaf.at[place].add(far)
                change = effect(jax.tree.unflatten(structure, shifted)) - base
                shares.append(float(np.linalg.norm(change)) / max(size, 1e-30))
            # A shift of an output counts like a reward, γ times.
            if abs(shares[0] - discount) < _MAX_ERROR_OF_SHARE and shares[1] < shares[0] / 3.0:
                found.append(f"{leaf_name('networks', paths[number])}{[*place]}")
    return found


def symmetry(evidence: Evidence) -> Answer:
    """Compare the gradients with a great reward for every action, and with a great penalty.

    Those that grow with the reward have to be opposite, since the policy is the one that acted.
    """
    values = evidence.shared(_Values)
    trainer = values.trainer
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(values.tried[0])]
    compared = 0
    for networks in values.tried:
        steps = in_steps(trainer.sensitivity.items, lambda item: 0.0)
        items = trainer.policy.acted_again(networks, steps)
        rewards = (_GREAT_REWARD, 2.0 * _GREAT_REWARD, -_GREAT_REWARD, -2.0 * _GREAT_REWARD)
        gradients = [_leaves(values.gradients(in_steps, networks, each, items)) for each in rewards]
        greatest = max(float(np.linalg.norm(leaf)) for leaf in gradients[0])
        every = zip(paths, *gradients, strict=True)
        for path, reward, more_reward, penalty, more_penalty in every:
            sizes = [np.linalg.norm(each) for each in (reward, penalty)]
            # The bias of the keys of attention, for example, has a gradient of rounding only.
            if max(sizes) <= _MAX_ROUNDING * greatest:
                continue
            more = [np.linalg.norm(each) for each in (more_reward, more_penalty)]
            if not any(b > 1.5 * a for a, b in zip(sizes, more, strict=True)):
                continue
            compared += 1
            asymmetry = float(np.linalg.norm(reward + penalty) / sum(sizes))
            if asymmetry > _MAX_RELATIVE_ASYMMETRY:
                if trainer.sensitivity.has_noise:
                    return unclear("the loss draws random numbers: its policy may be another one")
                return failed(
                    f"{leaf_name('gradient', path)} ({trainer.place}): expected opposite gradients"
                    f" with a reward of {_GREAT_REWARD:g} and of {-_GREAT_REWARD:g} for every"
                    f" action, got norms of {sizes[0]:.4g} and {sizes[1]:.4g}, and of"
                    f" {asymmetry * sum(sizes):.4g} for their sum"
                )
    if not compared:
        return skipped("no gradient grows with great rewards")
    return passed(f"opposite gradients of {compared} leaves with rewards and penalties")


def advantages(evidence: Evidence) -> Answer:
    """Add a constant to all rewards: standardised advantages of actions stay what they are."""
    subject, sensitivity = evidence.subject, evidence.loss
    if subject.setting("normalize_advantage", "standardize_advantage", "norm_adv") is not True:
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


def _same(reward: float, item: object) -> float:
    del item
    return reward


def _leaves(tree: PyTree) -> list[np.ndarray]:
    return jax.tree.leaves(as_numpy(tree))
