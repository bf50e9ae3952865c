"""The value function of an agent: which leaves it has, and which rewards it expects.

The gradients of a value function vanish at some reward, the same for every action. With episodes of
one step, that reward is the value V itself if the episode terminates, and (1 − γ)·V if it is
truncated, whatever λ, the number of rewards in a target, and the importance weights are.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from sebulba.check.evidence import Evidence
from sebulba.check.sensitivity import MAX_ROUNDING
from sebulba.check.training import Items, arrays, chosen, in_steps, reward_trainer
from sebulba.check.trees import flat
from sebulba.types import Networks, PyTree

STEP = 1.0
"""How much more, or less, values learn to expect."""
NUM_UPDATES = 200
"""At most, in which they learn it."""
MIN_FRACTION_LEARNED = 0.6
"""Of the step, in which they have learned it."""

_UPDATES_PER_ROUND = 10
_SMALL_REWARD = 0.05  # with an effect that is linear
_MAX_RELATIVE_BEND = 0.5  # of gradients that count as linear

MakeItems = Callable[..., Items]


class ValueFunction:
    """The value function of the agent, and the rewards at which its gradients vanish."""

    def __init__(self, evidence: Evidence):
        """Take the networks, and the trajectories that it is asked about.

        Args:
            evidence: the recording.
        """
        self.trainer = evidence.shared(reward_trainer)

    @functools.cached_property
    def _learns_rewards(self) -> list[bool]:
        """Which leaves have a gradient that depends on constant rewards."""
        networks = self.trainer.sensitivity.networks
        pair = [arrays(self.gradients(in_steps, networks, reward)) for reward in (0.0, STEP)]
        greatest = max(float(np.max(np.abs(leaf), initial=0.0)) for leaf in pair[1])
        return [
            float(np.max(np.abs(a - b), initial=0.0)) > MAX_ROUNDING * greatest
            for a, b in zip(*pair, strict=True)
        ]

    @functools.cached_property
    def leaves(self) -> list[bool]:
        """Which leaves have a gradient that depends on constant rewards.

        Without those that acting depends on, if there are others: policies would change as well.
        """
        pairs = zip(self._learns_rewards, self.trainer.policy.is_acting, strict=True)
        apart = [learns and not acts for learns, acts in pairs]
        return apart if any(apart) else self._learns_rewards

    @functools.cached_property
    def policy_leaves(self) -> list[bool]:
        """Which leaves are the policy's alone: acting depends on them, and no reward moves them.

        So an encoder that the value function trains is none of them. All False if the value
        function has no leaves of its own.
        """
        pairs = zip(self._learns_rewards, self.trainer.policy.is_acting, strict=True)
        return [self.is_apart and acts and not learns for learns, acts in pairs]

    def zeroed(self, networks: Networks) -> Networks:
        """Return networks whose value function is 0, whatever observation and action are."""
        return chosen(self.leaves, jax.tree.map(jnp.zeros_like, networks), networks)

    @functools.cached_property
    def is_apart(self) -> bool:
        """Whether there are leaves of a value function, and acting depends on none of them."""
        pairs = zip(self.leaves, self.trainer.policy.is_acting, strict=True)
        return any(self.leaves) and not any(is_value and acts for is_value, acts in pairs)

    @functools.cached_property
    def _learned_leaves(self) -> list[bool]:
        """The leaves of the value function, and its target networks.

        Moments of rewards stay as they are: values are relative to them.
        """
        networks = self.trainer.sensitivity.networks
        grads = arrays(self.gradients(in_steps, networks, STEP))
        rest = zip(
            self.leaves,
            grads,
            self.trainer.policy.is_acting,
            self.trainer.is_statistic,
            strict=True,
        )
        return [
            is_value or not (np.any(grad) or acts or is_statistic)
            for is_value, grad, acts, is_statistic in rest
        ]

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
        items = make(items or self.trainer.sensitivity.items, reward)
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
        pairs = zip(self.leaves, arrays(grads), strict=True)
        return flat([leaf for is_value, leaf in pairs if is_value])

    def difference_by_reward(self, networks: Networks, near: float) -> float:
        """Return how much greater values get by learning `STEP` more than `near`, than by less."""
        ends = []
        for reward in (near + STEP, near - STEP):
            items = in_steps(self.trainer.sensitivity.items, reward)
            trained = self.trainer.train(
                items, networks, num_updates=NUM_UPDATES, leaves=self._learned_leaves
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
        items = in_steps(self.trainer.sensitivity.items, reward)
        value = start
        for _ in range(NUM_UPDATES // _UPDATES_PER_ROUND):
            networks = self.trainer.train(
                items, networks, num_updates=_UPDATES_PER_ROUND, leaves=self._learned_leaves
            )
            found = self.vanishing_reward(in_steps, networks, value)
            if found is None:
                break
            # Once more: rescaled values are not linear in rewards.
            value = self.vanishing_reward(in_steps, networks, found) or found
            if abs(value - start) > MIN_FRACTION_LEARNED * abs(reward - start):
                break
        return self.trainer.settled(networks, items, self._learned_leaves), value
