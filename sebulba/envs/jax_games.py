"""Small games of two players in turns, in pure JAX."""

import dataclasses

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from sebulba.envs.jax_tasks import TaskStep
from sebulba.pytree import pytree_dataclass

_NUM_CARDS = 3
# What was done before, in the order of `KuhnState.history`: nothing, a check, a bet, check and bet.
_CHECKED, _BET, _CHECKED_AND_BET, _OVER = 1, 2, 3, 4
_FIRST_IS_TO_MOVE = np.array([True, False, False, True, True])
# By history and action, pass or bet: the next history.
_NEXT = np.array([[_CHECKED, _BET], [_OVER, _CHECKED_AND_BET], [_OVER, _OVER], [_OVER, _OVER]])
# What the loser pays at the end; who folds loses, and the higher card wins otherwise.
_STAKES = np.array([[0, 0], [1, 0], [1, 2], [1, 2]], np.float32)


@pytree_dataclass
class KuhnState:
    """The cards of the player and the opponent, who begins, and what was done."""

    cards: jax.Array  # [2] int32, different
    player_begins: jax.Array  # [] bool
    history: jax.Array  # [] int32, 0 … 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class KuhnPoker:
    """Poker with three cards and one chip to bet (Kuhn 1950), the smallest game with bluffs.

    Each of two players antes a chip and sees one of three cards. Actions: 0 pass (check, or fold
    after a bet), 1 bet (or call). Rewards are the chips won: ±1, or ±2 after a call. With perfect
    play, who begins loses 1/18 of a chip a game.
    """

    @property
    def observation(self) -> jax.ShapeDtypeStruct:
        """One-hot card, then the one-hot history of nothing, a check, a bet, check and bet."""
        return jax.ShapeDtypeStruct((_NUM_CARDS + _OVER,), np.float32)

    @property
    def action_space(self) -> gymnasium.Space:
        """Pass or bet."""
        return gymnasium.spaces.Discrete(2)

    def reset(self, key: jax.Array) -> tuple[KuhnState, jax.Array]:
        """Deal, and draw who begins."""
        cards_key, begin_key = jax.random.split(key)
        cards = jax.random.permutation(cards_key, jnp.arange(_NUM_CARDS, dtype=jnp.int32))
        state = KuhnState(
            cards=cards[:2],
            player_begins=jax.random.bernoulli(begin_key),
            history=jnp.int32(0),
        )
        return state, self._observe(state)

    def step(self, state: KuhnState, action: jax.Array, key: jax.Array) -> TaskStep:
        """Move for whoever is to move."""
        del key
        before = jnp.minimum(state.history, _CHECKED_AND_BET)
        has_folded = (before >= _BET) & (action == 0)
        player_wins = jnp.where(
            has_folded, self.is_opponents_turn(state), state.cards[0] > state.cards[1]
        )
        stake = jnp.asarray(_STAKES)[before, action]
        state = dataclasses.replace(state, history=jnp.asarray(_NEXT, jnp.int32)[before, action])
        reward = jnp.where(player_wins, stake, -stake)
        over = state.history == _OVER
        return state, self._observe(state), reward, over, jnp.zeros((), bool)

    def is_opponents_turn(self, state: KuhnState) -> jax.Array:
        """Return whether the opponent is to move."""
        return jnp.asarray(_FIRST_IS_TO_MOVE)[state.history] != state.player_begins

    def _observe(self, state: KuhnState) -> jax.Array:
        card = jnp.where(self.is_opponents_turn(state), state.cards[1], state.cards[0])
        # An ended game shows none of the histories.
        history = jax.nn.one_hot(state.history, _OVER, dtype=jnp.float32)
        return jnp.concatenate([jax.nn.one_hot(card, _NUM_CARDS, dtype=jnp.float32), history])
