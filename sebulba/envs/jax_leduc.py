"""Leduc poker in pure JAX: two rounds of bets, with one card in common in the second."""

import dataclasses

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from sebulba.envs.jax_tasks import TaskStep
from sebulba.pytree import pytree_dataclass

_FOLD, _CALL, _RAISE = range(3)
_NUM_RANKS, _NUM_ROUNDS = 3, 2
_MOST_MOVES, _MOST_RAISES = 4, 2  # of a round: check, raise, raise, call
_NUM_KINDS = 2  # of moves that do not end the game, in the order of the actions
_DECK = np.repeat(np.arange(_NUM_RANKS, dtype=np.int32), 2)
_RAISE_BY = np.array([2.0, 4.0], np.float32)  # chips, by round


@pytree_dataclass
class LeducState:
    """The cards and the moves; the player comes before the opponent."""

    cards: jax.Array  # [3] int32 ranks: the player's, the opponent's, the public card
    player_begins: jax.Array  # [] bool, both rounds
    moves: jax.Array  # [2, 4] int32, of each round: 0 none yet, `_CALL` or `_RAISE`
    round: jax.Array  # [] int32, 0 or 1
    paid: jax.Array  # [2] float32, chips of the player and the opponent

    @property
    def moves_of_round(self) -> jax.Array:
        """`[4]` int32, those of the present round."""
        return self.moves[self.round]

    @property
    def num_moves(self) -> jax.Array:
        """`[]` int32, in the present round."""
        return jnp.sum(self.moves_of_round > 0)

    @property
    def is_raised(self) -> jax.Array:
        """`[]` bool: the last move of the present round is a raise."""
        return self.moves_of_round[self.num_moves - 1] == _RAISE

    @property
    def can_raise(self) -> jax.Array:
        """`[]` bool."""
        return jnp.sum(self.moves_of_round == _RAISE) < _MOST_RAISES


@dataclasses.dataclass(frozen=True, kw_only=True)
class LeducPoker:
    """Poker with six cards, two rounds and bets of a fixed size (Southey et al. 2005).

    The deck has two cards of each of three ranks. Each of two players antes a chip and sees one
    card; a public card is shown before the second round. The same player begins both rounds. A
    round has at most two raises, by 2 chips in the first and 4 in the second. At the end a pair
    with the public card wins, otherwise the higher card, and equal cards share the pot. Actions: 0
    fold, if there is a raise to answer; 1 call or check; 2 raise. An illegal action is a call.
    Rewards are the chips won, up to ±13. With perfect play, who begins loses 0.0856 chips a game.

    Southey et al. 2005: "Bayes' bluff: opponent modelling in poker". The rules are those of
    OpenSpiel's `leduc_poker` and of pgx's `leduc_holdem`, which does not show the moves.
    """

    @property
    def observation(self) -> jax.ShapeDtypeStruct:
        """One-hot ranks of the own and the public card, zeros if unseen, then of all moves.

        A move, of `[2, 4]` by round, is `[1, 0]` for a call or check, `[0, 1]` for a raise, and
        zeros if it was not made.
        """
        size = 2 * _NUM_RANKS + _NUM_ROUNDS * _MOST_MOVES * _NUM_KINDS
        return jax.ShapeDtypeStruct((size,), np.float32)

    @property
    def action_space(self) -> gymnasium.Space:
        """Fold, call or raise."""
        return gymnasium.spaces.Discrete(3)

    def reset(self, key: jax.Array) -> tuple[LeducState, jax.Array]:
        """Deal, and draw who begins."""
        cards_key, begin_key = jax.random.split(key)
        state = LeducState(
            cards=jax.random.permutation(cards_key, jnp.asarray(_DECK))[:3],
            player_begins=jax.random.bernoulli(begin_key),
            moves=jnp.zeros((_NUM_ROUNDS, _MOST_MOVES), jnp.int32),
            round=jnp.int32(0),
            paid=jnp.ones(2, jnp.float32),
        )
        return state, self._observe(state)

    def step(self, state: LeducState, action: jax.Array, key: jax.Array) -> TaskStep:
        """Move for whoever is to move."""
        del key
        opponent_moves = self.is_opponents_turn(state)
        folds = (action == _FOLD) & state.is_raised
        raises = (action == _RAISE) & state.can_raise
        is_round_over = ~folds & ~raises & (state.num_moves > 0)
        over = folds | is_round_over & (state.round == _NUM_ROUNDS - 1)

        # A call pays what the other has paid.
        pays = jnp.max(state.paid) + jnp.where(raises, jnp.asarray(_RAISE_BY)[state.round], 0.0)
        is_mover = jnp.stack([~opponent_moves, opponent_moves])
        paid = jnp.where(is_mover & ~folds, pays, state.paid)

        move = jnp.where(folds, 0, jnp.where(raises, _RAISE, _CALL))
        moves = state.moves.at[state.round, state.num_moves].set(move)
        last_round = jnp.int32(_NUM_ROUNDS - 1)
        state = dataclasses.replace(
            state,
            moves=moves,
            round=jnp.where(is_round_over, last_round, state.round),
            paid=paid,
        )

        own, public = state.cards[:2], state.cards[2]
        strengths = own + jnp.where(own == public, _NUM_RANKS, 0)
        showdown = jnp.sign(strengths[0] - strengths[1]).astype(jnp.float32)
        outcome = jnp.where(folds, jnp.where(opponent_moves, 1.0, -1.0), showdown)
        reward = jnp.where(over, outcome * jnp.min(paid), 0.0)
        return state, self._observe(state), reward, over, jnp.zeros((), bool)

    def action_mask(self, state: LeducState) -> jax.Array:
        """Return the legal actions."""
        return jnp.stack([state.is_raised, jnp.ones((), bool), state.can_raise])

    def is_opponents_turn(self, state: LeducState) -> jax.Array:
        """Return whether the opponent is to move."""
        return (state.num_moves % 2 == 0) != state.player_begins

    def _observe(self, state: LeducState) -> jax.Array:
        own = jnp.where(self.is_opponents_turn(state), state.cards[1], state.cards[0])
        ranks = jax.nn.one_hot(jnp.stack([own, state.cards[2]]), _NUM_RANKS, dtype=jnp.float32)
        is_seen = jnp.stack([jnp.ones((), bool), state.round > 0])
        moves = jax.nn.one_hot(state.moves - _CALL, _NUM_KINDS, dtype=jnp.float32)
        return jnp.concatenate([jnp.where(is_seen[:, None], ranks, 0.0).ravel(), moves.ravel()])
