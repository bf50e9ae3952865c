"""Short trainings on recorded trajectories with other rewards, for checks of what learning does."""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sebulba.check.evidence import Evidence
from sebulba.check.one_device import OneDevice
from sebulba.check.perturbation import Perturbation, is_valid
from sebulba.check.recording import RecordedTrajectory
from sebulba.check.result import as_numpy
from sebulba.check.sensitivity import LossSensitivity
from sebulba.check.sizes import is_large
from sebulba.check.subject import Subject
from sebulba.types import Clock, Experience, Networks, PyTree

_NUM_SETTLING_UPDATES = 2_000  # in which a moving average of rate 0.005 arrives
# To get somewhere in few updates.
_SETTINGS: dict[str, Any] = {"learning_rate": 0.01, "target_period": 10}
# One loss for all rows, in which rewards count as they are, and nothing but rewards counts.
OF_REWARDS: dict[str, Any] = {
    "num_minibatches": 1,
    "num_epochs": 1,
    "entropy_cost": 0.0,
    "normalize_advantages": False,
    "reward_clip": None,
    "priority_exponent": 0.0,
}
_MAX_STEPS_OF_A_CYCLE = 64  # statistics may change in the last one only
_NUM_LOSSES = 8  # whose gradients are averaged
_MAX_GAP = 0.02  # of gradients that differ in their size alone, relative
_ROUNDING = 1e-6  # of a sum in float32, relative to its terms

Items = Sequence[RecordedTrajectory]
Rewards = float | Callable[[RecordedTrajectory], np.ndarray]
"""The rewards `[T, B]` of a trajectory's actions, or one number for all of them."""


def too_large(evidence: Evidence) -> str | None:
    """Return why a training of the agent would take too long; None: it does not."""
    networks = evidence.loss.networks
    if not is_large(networks, evidence.subject.run_spec.environment):
        return None
    num_parameters = sum(leaf.size for leaf in jax.tree.leaves(networks))
    return f"{num_parameters:,} parameters and images take too long; check a smaller task"


class Trainer:
    """An agent on one learner device, with other settings, and the recorded trajectories."""

    def __init__(self, subject: Subject, sensitivity: LossSensitivity, **settings: Any):
        """Build the agent.

        Args:
            subject: the run.
            sensitivity: whose trajectories and networks are used.
            settings: of the agent; those that it does not have are ignored.
        """
        self.subject, self.sensitivity = subject, sensitivity
        self._one = OneDevice(subject, **(_SETTINGS | settings))
        self.policy = sensitivity.policy

    @property
    def place(self) -> str:
        """Name the actor, act cycle and rows of the newest trajectory, for messages."""
        item = self.sensitivity.items[-1]
        return f"{item.place}, rows 0 … {len(item.trajectory.action)}"

    def experience(self, networks: Networks, items: Items) -> Experience:
        """Return the agent's experience after these trajectories."""
        return self._one.experience(networks, items[self.sensitivity.num_unlearned :])

    def gradients(self, networks: Networks, experience: Experience, step: int = 0) -> Any:
        """Return the gradients of one loss, and the experience after it."""
        key = jax.random.fold_in(jax.random.key(self.subject.config.seed), step)
        (_, (experience, _)), grads = self._one.loss_and_gradients(
            networks, experience, key, self._clock(step)
        )
        return grads, experience

    def _clock(self, step: int) -> Clock:
        learned = self.sensitivity.items[self.sensitivity.num_unlearned :]
        return self._one.clock(learned, step)

    def mean_gradients(self, networks: Networks, items: Items) -> list[np.ndarray]:
        """Return the leaves of gradients, averaged over several losses."""
        experience = self.experience(networks, items)
        draws = [
            arrays(self.gradients(networks, experience, step)[0]) for step in range(_NUM_LOSSES)
        ]
        return [np.mean(each, axis=0) for each in zip(*draws, strict=True)]

    def train(
        self,
        items: Items,
        start: Networks | None = None,
        *,
        num_updates: int,
        leaves: Sequence[bool] | None = None,
    ) -> Networks:
        """Return networks after updates.

        Args:
            items: the trajectories.
            start: networks; None: those at the end of the recording.
            num_updates: optimisation steps.
            leaves: which leaves may change; None: all.
        """
        networks = self.sensitivity.networks if start is None else start
        experience = self.experience(networks, items)
        opt_state = self._one.agent.init_opt_state(networks)
        for step in range(num_updates):
            grads, experience = self.gradients(networks, experience, step)
            after, opt_state = self._one.optimize(
                networks, opt_state, grads, experience, self._clock(step)
            )
            networks = after if leaves is None else chosen(leaves, after, networks)
        return networks

    @functools.cached_property
    def is_statistic(self) -> list[bool]:
        """Which leaves follow the trajectories, such as moments of rewards, and not other leaves.

        `optimize` gives them other values if the trajectories alone are others. A target network
        follows leaves of the networks, whatever the trajectories are.
        """
        sensitivity, networks = self.sensitivity, self.sensitivity.networks
        per_cycle = self._one.agent.num_updates_per_cycle(self.subject.first_learning_cycle or 0)
        nothing = jax.tree.map(jnp.zeros_like, networks)

        def after(items: Items) -> list[np.ndarray]:
            learned, experience = networks, self.experience(networks, items)
            opt_state = self._one.agent.init_opt_state(networks)
            for step in range(min(per_cycle, _MAX_STEPS_OF_A_CYCLE)):
                learned, opt_state = self._one.optimize(
                    learned, opt_state, nothing, experience, self._clock(step)
                )
            return arrays(learned)

        change = Perturbation(field="observation", rows=is_valid)
        items = in_steps(sensitivity.items, 0.0)
        others = in_steps(change.apply(sensitivity.items), 1.0)
        pairs = zip(after(items), after(others), strict=True)
        return [not np.array_equal(one, other) for one, other in pairs]

    def settled(self, networks: Networks, items: Items, leaves: Sequence[bool]) -> Networks:
        """Return networks after many updates without gradients: target networks follow.

        Args:
            networks: before.
            items: the trajectories of the experience that `optimize` gets.
            leaves: which leaves may change.
        """
        grads, experience = self.gradients(networks, self.experience(networks, items))
        pairs = zip(leaves, arrays(grads), strict=True)
        is_target = [may_change and not np.any(grad) for may_change, grad in pairs]
        if not any(is_target):
            return networks
        nothing, clock = jax.tree.map(jnp.zeros_like, grads), self._clock(0)

        def update(_: int, carry: tuple[Networks, PyTree]) -> tuple[Networks, PyTree]:
            networks, opt_state = carry
            return self._one.agent.optimize(networks, opt_state, nothing, experience, clock)

        def follow(networks: Networks) -> Networks:
            start = networks, self._one.agent.init_opt_state(networks)
            return jax.lax.fori_loop(0, _NUM_SETTLING_UPDATES, update, start)[0]

        return chosen(is_target, jax.jit(follow)(networks), networks)


def reward_trainer(evidence: Evidence) -> Trainer:
    """Return the trainer of an agent whose loss has all rows, and no terms without rewards."""
    return Trainer(evidence.subject, evidence.loss, **OF_REWARDS)


def chosen(leaves: Iterable[bool], new: PyTree, old: PyTree) -> PyTree:
    """Return a pytree with the chosen leaves of one, and the other leaves of the other."""
    pairs = zip(leaves, jax.tree.leaves(new), jax.tree.leaves(old), strict=True)
    return jax.tree.unflatten(
        jax.tree.structure(old), [a if is_new else b for is_new, a, b in pairs]
    )


def in_steps(
    items: Items, reward: Rewards, *, is_truncated: bool = False
) -> list[RecordedTrajectory]:
    """Return the trajectories as episodes of one step, with these rewards.

    Episodes terminate. If they are truncated, every target is a reward and one bootstrap value,
    whatever λ or n are.
    """
    changed = []
    last: dict[int, np.ndarray] = {}  # A row 0 ends the last transition of the trajectory before.
    for item in items:
        rows = item.trajectory.env_steps
        number = item.cycle * (len(rows.reward) - 1) + np.arange(len(rows.reward))
        is_last = np.broadcast_to((number % 2 == 1)[:, None], rows.reward.shape)
        rewards = np.empty_like(rows.reward)
        rewards[1:] = reward(item) if callable(reward) else reward
        rewards[0] = last.get(item.actor_id, rewards[1])
        last[item.actor_id] = rewards[-1]
        steps = item.with_rows(
            reward=np.where(is_last, rewards, np.float32(0.0)),
            terminated=is_last & ~np.bool_(is_truncated),
            truncated=is_last & np.bool_(is_truncated),
            is_first=~is_last,
        )
        changed.append(steps)
    return changed


in_truncated_steps = functools.partial(in_steps, is_truncated=True)


def mean_component(action: np.ndarray) -> np.ndarray:
    """Return the mean component `[T, B]` of continuous actions, clipped to ±1."""
    return np.clip(action, -1.0, 1.0).reshape(*action.shape[:2], -1).mean(axis=-1)


def arrays(tree: PyTree) -> list[np.ndarray]:
    """Return the leaves as NumPy arrays."""
    return jax.tree.leaves(as_numpy(tree))


def differences(one: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return `one − other` of each leaf's gradients; zeros where no factor can be measured.

    A difference of two gradients has their rounding. Below 50 times that, `factor_between` it and
    another one could be any number, above all in a leaf of two, such as a coin's logits, whose
    gradients have one direction.
    """
    greatest = max(float(np.linalg.norm(each)) for each in (*one, *other))
    found = []
    for a, b in zip(one, other, strict=True):
        size = max(float(np.linalg.norm(a)), float(np.linalg.norm(b)))
        # A leaf may be small because its terms cancel, which round as those of other leaves do.
        least = _ROUNDING / _MAX_GAP * max(size, _MAX_GAP * greatest)
        found.append(a - b if np.linalg.norm(a - b) > least else np.zeros_like(a))
    return found


def factor_between(before: np.ndarray, after: np.ndarray) -> float:
    """Return the factor between two gradients; NaN: they differ in more than their size."""
    size = np.linalg.norm(before)
    factor = float(np.sum(before * after) / size**2)
    return factor if np.linalg.norm(after - factor * before) <= _MAX_GAP * size else np.nan
