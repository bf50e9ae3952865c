"""Checks of what learning leads to: rewarded actions become likelier, and values approach rewards.

A short training on recorded trajectories with other rewards, in which every episode has one step.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sebulba.tools.check.acting import unroll
from sebulba.tools.check.names import ENTROPY, PREFERENCE, VALUES
from sebulba.tools.check.recording import RecordedTrajectory
from sebulba.tools.check.result import CheckResult, as_numpy, failed, leaf_name, passed, skipped
from sebulba.tools.check.sampling import is_distribution
from sebulba.tools.check.sensitivity import LossSensitivity
from sebulba.tools.check.subject import Subject, settings_of
from sebulba.types import Networks, PyTree

_UPDATES = 40
# To get somewhere in few updates.
_SETTINGS: dict[str, Any] = {"learning_rate": 0.01, "target_period": 10}
_ENTROPY_COST = 10.0  # far above any other term of the loss
_TARGET_ENTROPY = 10.0  # nats; out of reach
_FEW = 5  # updates at either end, whose gradients are compared
_MOST_WORK = 1e9  # parameters times elements of an observation
_LEAST_TAKEN = 4  # times, of an action that is rewarded
_LEAST_ENTROPY = 0.1  # nats, of the policy that a great entropy cost is tried on
_MOST_HALVINGS = 6  # of the way from the initial networks to that policy
_MOST_GROWTH = 1.2  # of a gradient that should vanish


def check_direction(subject: Subject, sensitivity: LossSensitivity) -> list[CheckResult]:
    """Train with rewards for one action, then for entropy alone, and with equal rewards."""
    num_parameters = sum(leaf.size for leaf in jax.tree.leaves(sensitivity.networks))
    observation = jax.tree.leaves(subject.run_spec.environment.observation)
    if num_parameters * sum(leaf.size for leaf in observation) > _MOST_WORK:
        reason = f"{num_parameters:,} parameters and images take too long; check a smaller task"
        return [skipped(name, reason) for name in (PREFERENCE, ENTROPY, VALUES)]
    trainer = _Trainer(subject, sensitivity)
    preference, trained = _check_preference(trainer)
    return [preference, _check_entropy(trainer, trained), _check_values(trainer)]


class _Trainer:
    def __init__(self, subject: Subject, sensitivity: LossSensitivity):
        self.subject, self.sensitivity = subject, sensitivity
        self.agent, _ = subject.agent_on(1, **_SETTINGS)
        self._optimize = jax.jit(self.agent.optimize)
        item = sensitivity.items[-1]
        rows = jax.tree.map(lambda leaf: leaf[:-1], item.trajectory.env_steps)
        state = subject.start_states[0]

        def act(networks: Networks, greedy: bool) -> tuple[PyTree, PyTree]:
            networks = subject.agent.actor_networks(networks)
            return unroll(subject.agent, networks, state, rows, greedy=greedy)[:2]

        self._act = jax.jit(act, static_argnums=1)

    def acted(self, networks: Networks) -> tuple[np.ndarray, list[Any]]:
        """Return greedy actions `[T, B, ...]` on recorded rows, and the distributions of extras."""
        action, extras = self._act(networks, True)
        leaves = jax.tree.leaves(extras, is_leaf=is_distribution)
        return np.asarray(action), [leaf for leaf in leaves if is_distribution(leaf)]

    def spread(self, networks: Networks) -> float:
        """Return the mean distance between sampled and greedy actions."""
        sampled, greedy = (self._act(networks, is_greedy)[0] for is_greedy in (False, True))
        return float(np.mean(np.abs(np.asarray(sampled) - np.asarray(greedy))))

    def train(
        self,
        items: Sequence[RecordedTrajectory],
        start: Networks | None = None,
        loss_and_gradients: Callable[..., Any] | None = None,
        num_updates: int = _UPDATES,
    ) -> tuple[Networks, list[PyTree]]:
        """Return networks after updates, and the gradients of every update."""
        loss_and_gradients = loss_and_gradients or self.sensitivity.loss_and_gradients
        networks = self.sensitivity.networks if start is None else start
        experience = self.sensitivity.experience(items)
        opt_state = self.agent.init_opt_state(networks)
        gradients = []
        for step in range(num_updates):
            key = jax.random.fold_in(jax.random.key(self.subject.config.seed), step)
            (_, (experience, _)), grads = loss_and_gradients(
                networks, experience, key, jnp.int32(step)
            )
            networks, opt_state = self._optimize(networks, opt_state, grads, experience)
            gradients.append(grads)
        return networks, gradients

    def items(self, reward: Callable[[RecordedTrajectory], np.ndarray]) -> list[RecordedTrajectory]:
        """Return the trajectories as episodes of one step, with the rewards `[T, B]` of actions."""
        return [_in_steps(item, reward(item)) for item in self.sensitivity.items]


def _in_steps(item: RecordedTrajectory, reward: np.ndarray) -> RecordedTrajectory:
    rows = item.trajectory.env_steps
    number = item.cycle * len(reward) + np.arange(len(rows.reward))
    is_last = np.broadcast_to((number % 2 == 1)[:, None], rows.reward.shape)
    rewards = np.concatenate([np.zeros_like(rows.reward[:1]), reward.astype(np.float32)])
    env_steps = dataclasses.replace(
        rows,
        reward=np.where(is_last, rewards, np.float32(0.0)),
        terminated=is_last,
        truncated=np.zeros_like(is_last),
        is_first=~is_last,
    )
    trajectory = dataclasses.replace(item.trajectory, env_steps=env_steps)
    return dataclasses.replace(item, trajectory=trajectory)


def _check_preference(trainer: _Trainer) -> tuple[CheckResult, Networks]:
    """Reward one action, then another one; for continuous actions, their mean component."""
    networks = trainer.sensitivity.networks
    greedy, _ = trainer.acted(networks)
    if not np.issubdtype(greedy.dtype, np.integer):
        return _reward_and_compare(trainer, None)
    sensitivity = trainer.sensitivity
    items = trainer.items(lambda item: np.zeros(item.trajectory.action.shape[:2]))
    learned = [each.trajectory for each in items[sensitivity.num_unlearned :]]
    taken = np.concatenate([each.action[each.valid] for each in learned])
    values, counts = np.unique(taken, axis=0, return_counts=True)
    values = values[counts >= np.maximum(_LEAST_TAKEN, 0.1 * counts.max())]
    if len(values) < 2:
        reason = f"the loss learns from fewer than two actions that were taken {_LEAST_TAKEN} times"
        return skipped(PREFERENCE, reason), networks
    # An action that is never greedy cannot become so more seldom, nor one that always is, oftener.
    least, *_, most = sorted(values, key=lambda value: float(_equals(greedy, value).mean()))
    result, trained = _reward_and_compare(trainer, least)
    if result.status == "skip":
        return _reward_and_compare(trainer, most)
    return result, trained


def _reward_and_compare(trainer: _Trainer, wanted: Any) -> tuple[CheckResult, Networks]:
    def reward(item: RecordedTrajectory) -> np.ndarray:
        action = item.trajectory.action
        return _mean_component(action) if wanted is None else _equals(action, wanted)

    def liking(networks: Networks) -> float:
        action, distributions = trainer.acted(networks)
        if wanted is None:
            return float(action.mean())
        for each in distributions:
            every = jnp.broadcast_to(jnp.asarray(wanted, action.dtype), action.shape)
            log_prob = np.asarray(each.log_prob(every))
            if log_prob.shape == action.shape[:2]:
                return float(np.exp(log_prob).mean())
        return float(_equals(action, wanted).mean())

    before = liking(trainer.sensitivity.networks)
    # Action values have to change more than probabilities, before a greedy action changes.
    for num_updates in (_UPDATES, 4 * _UPDATES):
        trained, _ = trainer.train(trainer.items(reward), num_updates=num_updates)
        after = liking(trained)
        if after != before:
            break
    what = "the mean of greedy actions" if wanted is None else f"action {wanted}"
    if before == after:
        reason = f"{num_updates} updates changed no greedy action"
        return skipped(PREFERENCE, reason), trained
    if after > before:
        detail = f"{what}: {before:.3f} before, {after:.3f} after {num_updates} rewarding updates"
        return passed(PREFERENCE, detail), trained
    return failed(
        PREFERENCE,
        f"networks (updates 0 … {num_updates - 1}): expected {what} to grow when rewarded, got"
        f" {after:.3f} after {before:.3f}; likely cause: a sign in the policy's loss, in the TD"
        " error or in the target",
    ), trained


def _mean_component(action: np.ndarray) -> np.ndarray:
    return np.clip(action, -1.0, 1.0).reshape(*action.shape[:2], -1).mean(axis=-1)


def _equals(action: np.ndarray, wanted: Any) -> np.ndarray:
    return (action == wanted).reshape(*action.shape[:2], -1).all(axis=-1)


def _check_entropy(trainer: _Trainer, networks: Networks) -> CheckResult:
    """Begin with a policy that prefers an action, and learn with a great entropy cost."""
    if "target_entropy" in dict(settings_of(trainer.subject.config.agent)):
        return _check_target_entropy(trainer)
    if trainer.subject.setting("entropy_cost") is None:
        return skipped(ENTROPY, "the agent has no setting `entropy_cost` or `target_entropy`")
    agent, _ = trainer.subject.agent_on(1, entropy_cost=_ENTROPY_COST)

    def entropy(networks: Networks) -> float | None:
        _, distributions = trainer.acted(networks)
        found = [each.entropy() for each in distributions if hasattr(each, "entropy")]
        return float(np.mean(np.asarray(found[0]))) if found else None

    before = entropy(networks)
    for _ in range(_MOST_HALVINGS):
        if before is None or before > _LEAST_ENTROPY:
            break
        # The gradient of the entropy vanishes where a policy is certain.
        networks = jax.tree.map(lambda a, b: (a + b) / 2, networks, trainer.sensitivity.networks)
        before = entropy(networks)
    if before is None:
        return skipped(ENTROPY, "no distribution in the extras has an entropy")
    items = trainer.items(lambda item: np.zeros(item.trajectory.action.shape[:2]))
    loss = jax.jit(jax.value_and_grad(agent.loss, has_aux=True))
    after = entropy(trainer.train(items, networks, loss)[0])
    assert after is not None
    if after > before:
        detail = f"{before:.3f} nats before, {after:.3f} after {_UPDATES} updates for entropy alone"
        return passed(ENTROPY, detail)
    return failed(
        ENTROPY,
        f"networks (updates 0 … {_UPDATES - 1}): expected the policy's entropy to grow with an"
        f" entropy_cost of {_ENTROPY_COST:g}, got {after:.3f} nats after {before:.3f}; likely"
        " cause: the entropy has the wrong sign in the loss",
    )


def _check_target_entropy(trainer: _Trainer) -> CheckResult:
    """Compare how far samples are from greedy actions, for a low and for a high target entropy."""

    def spread(target_entropy: float) -> float:
        agent, _ = trainer.subject.agent_on(1, target_entropy=target_entropy)
        loss = jax.jit(jax.value_and_grad(agent.loss, has_aux=True))
        items = trainer.items(lambda item: _mean_component(item.trajectory.action))
        networks, _ = trainer.train(items, None, loss, 4 * _UPDATES)
        return trainer.spread(networks)

    low, high = spread(-_TARGET_ENTROPY), spread(_TARGET_ENTROPY)
    if high > low:
        detail = f"samples are {high:.3f} from greedy actions with a high target, {low:.3f} with a"
        return passed(ENTROPY, f"{detail} low one")
    return failed(
        ENTROPY,
        f"networks (updates 0 … {4 * _UPDATES - 1}): expected samples farther from greedy actions"
        f" with a target_entropy of {_TARGET_ENTROPY:g} than with {-_TARGET_ENTROPY:g}, got"
        f" {high:.3f} and {low:.3f}; likely cause: a sign in the temperature's loss",
    )


def _check_values(trainer: _Trainer) -> CheckResult:
    """Give every action the same reward: gradients of value functions have to vanish.

    Those are the leaves whose gradient depends on rewards, and on which greedy acting does not.
    """

    def constant(reward: float) -> list[RecordedTrajectory]:
        return trainer.items(lambda item: np.full(item.trajectory.action.shape[:2], reward))

    _, gradients = trainer.train(constant(1.0))
    key = jax.random.fold_in(jax.random.key(trainer.subject.config.seed), 0)
    networks = trainer.sensitivity.networks
    _, unrewarded = trainer.sensitivity.loss_and_gradients(
        networks, trainer.sensitivity.experience(constant(0.0)), key, jnp.int32(0)
    )
    leaves = jax.tree_util.tree_leaves_with_path(as_numpy(gradients[0]))
    others = jax.tree.leaves(as_numpy(unrewarded))
    first, last = (
        np.mean([_norms(each) for each in part], axis=0)
        for part in (gradients[:_FEW], gradients[-_FEW:])
    )
    shown, worst = 0, 0.0
    for index, ((path, leaf), other) in enumerate(zip(leaves, others, strict=True)):
        if np.array_equal(leaf, other) or _is_acting(trainer, index):
            continue
        shown += 1
        growth = float(last[index] / max(first[index], 1e-12))
        worst = max(worst, growth)
        if growth > _MOST_GROWTH:
            return failed(
                VALUES,
                f"{leaf_name('gradient', path)} (updates {_UPDATES - _FEW} … {_UPDATES - 1}):"
                " expected it to vanish while every action has the reward 1, got a norm of"
                f" {last[index]:.3g} after {first[index]:.3g}; likely cause: a sign in the value"
                " loss",
            )
    if not shown:
        return skipped(VALUES, "greedy acting depends on every leaf whose gradient has rewards")
    return passed(VALUES, f"gradients of {shown} leaves shrink, to {worst:.2f} or less")


def _norms(grads: PyTree) -> np.ndarray:
    return np.array([np.linalg.norm(leaf.astype(np.float64)) for leaf in _arrays(grads)])


def _arrays(tree: PyTree) -> list[np.ndarray]:
    return jax.tree.leaves(as_numpy(tree))


def _is_acting(trainer: _Trainer, index: int) -> bool:
    """Whether another value of a leaf changes what greedy acting computes of the policy."""
    leaves, structure = jax.tree.flatten(trainer.sensitivity.networks)
    noise = np.random.default_rng(0).normal(size=leaves[index].shape)
    leaves[index] = leaves[index] + jnp.asarray(noise, leaves[index].dtype)
    before = trainer.acted(trainer.sensitivity.networks)
    after = trainer.acted(jax.tree.unflatten(structure, leaves))
    pairs = zip(_arrays(before), _arrays(after), strict=True)
    return not all(np.array_equal(a, b) for a, b in pairs)
