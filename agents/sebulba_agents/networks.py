"""The actor-critic network: torso, optional recurrent core, and heads for policy and value.

Observations are `[T, B, ...]`. A single row is an unroll of `T = 1`, so that acting and learning
are the same code.
"""

from collections.abc import Callable

import flax.linen as nn
import jax
from flax.linen.initializers import orthogonal

from sebulba.pytree import pytree_dataclass
from sebulba.toolkit.cores import CoreSettings, initial_core_state, join_past, unroll_core
from sebulba.toolkit.critic_observation import CriticObservation, SameObservation
from sebulba.toolkit.dense import Dense
from sebulba.toolkit.distributions import Distribution
from sebulba.toolkit.policy_heads import PolicyHead
from sebulba.toolkit.torsos import fold_time
from sebulba.types import PyTree

_VALUE_GAIN = 1.0

CoreState = PyTree
"""The recurrent state; `()` for a feed-forward network."""


@pytree_dataclass
class PolicyValue:
    """The network's outputs for each row."""

    policy: Distribution  # [T, B]
    values: jax.Array  # [T, B]


class ActorCritic(nn.Module):
    """A policy and a value function.

    All parts that are expensive, such as convolutions and recurrent cores, are shared by the heads.
    """

    policy: PolicyHead
    torso: Callable[..., nn.Module]  # name -> module
    core: CoreSettings | None
    # The value function's own layers; None: it is a head on the features of the policy's.
    value_torso: Callable[..., nn.Module] | None  # name -> module
    shares_features: bool  # whether these layers take the features, and not what the policy sees
    views: SameObservation | CriticObservation = SameObservation()

    @nn.compact
    def __call__(
        self,
        observation: PyTree,
        *,
        reward: jax.Array,
        last_action: jax.Array,
        is_first: jax.Array,
        state: CoreState,
    ) -> tuple[PolicyValue, CoreState]:
        """Unroll over consecutive rows.

        Args:
            observation: `[T, B, ...]`, complete.
            reward: `[T, B]`, received with the observation; an input of the core only.
            last_action: `[T, B, ...]`, of the previous row; an input of the core only.
            is_first: `[T, B]` bool, rows before which state, last action and reward are zeroed.
            state: before row 0, as returned by `initial_state`.

        Returns:
            Policy and value of each row, and the state after the last one.
        """
        seen = self.views.of_policy(observation)
        features = fold_time(self.torso(name="torso"), seen)
        if self.core is not None:
            inputs = join_past(features, reward, self.policy.encode(last_action), is_first)
            features, state = unroll_core(self.core, inputs, is_first, state, name="core")
        for_value = features
        if self.value_torso is not None:
            shared = features if self.shares_features else seen
            for_value = self.views.of_value(shared, observation)
            for_value = fold_time(self.value_torso(name="value_torso"), for_value)
        values = Dense(1, kernel_init=orthogonal(_VALUE_GAIN), name="value")
        return PolicyValue(policy=self.policy(features), values=values(for_value)[..., 0]), state

    def initial_state(self, batch_size: int) -> CoreState:
        """Return the zero state of `batch_size` environments."""
        if self.core is None:
            return ()
        return initial_core_state(self.core, batch_size)
