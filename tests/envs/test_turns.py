"""Games in turns: the opponent moves inside the environment's step."""

import dataclasses

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sebulba.config import EnvConfig
from sebulba.envs import make_environment
from sebulba.errors import ConfigError
from sebulba.types import Opponents
from tests.envs.kuhn import HISTORIES, payoff

NUM_ENVS = 64


@dataclasses.dataclass(frozen=True, kw_only=True)
class Turns:
    """Each of two players moves `moves` times, who begins is drawn, and each move pays its mover.

    A player sees how often both have moved, and its move pays it the action plus 1.
    """

    moves: int = 2

    @property
    def observation(self):
        return jax.ShapeDtypeStruct((2,), jnp.float32)

    @property
    def action_space(self):
        return gymnasium.spaces.Discrete(3)

    def reset(self, key):
        state = jnp.stack([jnp.int32(0), jax.random.bernoulli(key).astype(jnp.int32)])
        return state, self.observe(state)

    def step(self, state, action, key):
        paid = 1.0 + action.astype(jnp.float32)
        reward = jnp.where(self.is_opponents_turn(state), -paid, paid)
        state = state.at[0].add(1)
        return state, self.observe(state), reward, state[0] == 2 * self.moves, jnp.bool_(False)

    def action_mask(self, state):
        return jnp.arange(3) <= state[0]

    def is_opponents_turn(self, state):
        return (state[0] + state[1]) % 2 == 1

    def observe(self, state):
        return jnp.stack([state[0] // 2, state[0]]).astype(jnp.float32)


class Remembers:
    """An opponent that chooses how often it has moved in this game, and sums up its rewards."""

    start = (jnp.zeros(NUM_ENVS, jnp.int32), jnp.zeros(NUM_ENVS))

    def __call__(self, state, row, waiting):
        count, paid = state
        count = jnp.where(row.is_first, 0, count)
        paid = jnp.where(row.is_first, 0.0, paid) + row.reward
        kept = (jnp.where(waiting, count + 1, state[0]), jnp.where(waiting, paid, state[1]))
        return count, kept


def make(name="tests.envs.test_turns:Turns", **options):
    config = EnvConfig(suite="jax", id=name, options=options)
    return make_environment(config, num_envs=NUM_ENVS, seed=3)


def test_rewards_add_up_over_the_moves_of_the_opponent():
    environment = make(moves=3)
    environment.play_against("remembers", Remembers(), Remembers.start)
    row = environment.reset()
    begins = environment.whole_state.plies.task_state[:, 1] == 0
    assert 0 < begins.sum() < NUM_ENVS  # both players have begun games
    np.testing.assert_array_equal(row.observation[:, 1], np.where(begins, 0, 1))
    assert row.is_first.all() and not row.reward.any()
    for turn in range(3):
        row = environment.step(np.full(NUM_ENVS, 0, np.int32))
        # The player's 1, and what the opponent's reply pays it: a reply is its move of this number.
        replies = np.where(begins, turn + 1, turn + 2) * np.where(begins | (turn < 2), 1, 0)
        np.testing.assert_array_equal(row.reward, 1.0 - replies)
        assert (row.terminated == (turn == 2)).all()
        assert not row.is_first.any()
    # Minus the player's moves before the opponent's last one, and its own but for that one.
    paid = np.asarray(environment.whole_state.opponent[1])
    np.testing.assert_array_equal(paid, np.where(begins, 3 - 3, 3 - 2))
    row = environment.step(np.full(NUM_ENVS, 2, np.int32))  # ignored
    assert row.is_first.all() and not row.reward.any() and not row.done.any()
    np.testing.assert_array_equal(row.action_mask.sum(axis=1), row.observation[:, 1] + 1)


def test_an_opponent_moves_only_where_it_is_waited_for():
    environment = make(moves=3)
    environment.play_against("remembers", Remembers(), Remembers.start)
    environment.reset()
    for _ in range(3):
        environment.step(np.zeros(NUM_ENVS, np.int32))
    np.testing.assert_array_equal(environment.whole_state.opponent[0], 3)


@pytest.mark.parametrize("is_random", [True, False])
def test_a_truncated_game_ends_with_what_the_player_sees_on_its_turn(is_random):
    environment = make(moves=9, max_episode_steps=2)
    if not is_random:
        environment.play_against("remembers", Remembers(), Remembers.start)
    row = environment.reset()
    for _ in range(3):
        opponent_begins = environment.whole_state.plies.task_state[:, 1]
        assert row.is_first.all() and not row.done.any()
        for turn in (1, 2):
            row = environment.step(np.zeros(NUM_ENVS, np.int32))
            assert (row.truncated == (turn == 2)).all() and not row.terminated.any()
            np.testing.assert_array_equal(row.observation[:, 1], 2 * turn + opponent_begins)
        row = environment.step(np.zeros(NUM_ENVS, np.int32))
    assert environment.settings()["max_episode_steps"] == 2


def test_a_game_that_ends_at_the_limit_is_terminated():
    environment = make(moves=2, max_episode_steps=2)
    environment.reset()
    for turn in (1, 2):
        row = environment.step(np.zeros(NUM_ENVS, np.int32))
        assert (row.terminated == (turn == 2)).all() and not row.truncated.any()


def test_random_opponents_make_legal_moves():
    environment = make()
    row = environment.reset()
    seen = []
    for _ in range(30):
        row = environment.step(np.zeros(NUM_ENVS, np.int32))
        # After the player began, the reply is the second move, of which two actions are legal.
        is_second = (row.observation[:, 1] == 2) & ~row.is_first
        seen += list(1.0 - row.reward[is_second])
    assert set(seen) == {1.0, 2.0}


def test_kuhn_poker_is_that_of_the_tree():
    environment = make("KuhnPoker-v0")

    def bets(card, history):
        return (2 * card + 3 * history) % 5 < 2  # any rule

    def opponent(state, row, waiting):
        card, history = row.observation[:, :3].argmax(1), row.observation[:, 3:].argmax(1)
        return bets(card, history).astype(jnp.int32), state

    environment.play_against("a rule", opponent, ())
    row, outcomes = environment.reset(), set()
    for _ in range(20):
        state = environment.whole_state.plies.task_state
        card, history = row.observation[:, :3].argmax(1), row.observation[:, 3:].argmax(1)
        after = environment.step(bets(card, history).astype(np.int32))
        for i in np.flatnonzero(after.done):
            begins = bool(state.player_begins[i])
            cards = [int(each) for each in (state.cards[i] if begins else state.cards[i][::-1])]
            played = ""
            while payoff(played, cards) is None:
                mover = cards[len(played) % 2]
                played += "b" if bets(mover, HISTORIES.index(played)) else "p"
            assert after.reward[i] == payoff(played, cards) * (1 if begins else -1)
            outcomes.add(played)
        row = after
    assert len(outcomes) >= 4


@pytest.mark.parametrize(
    ("options", "opponents"),
    [
        ({}, None),
        ({"opponent": "random"}, None),
        ({"opponent": "self"}, Opponents()),
        (
            {"opponent": "past", "pool_every": 7},
            Opponents(pool_size=8, pool_every=7, past_share=0.2),
        ),
    ],
)
def test_the_spec_says_who_moves_for_the_opponent(options, opponents):
    assert make("KuhnPoker-v0", **options).spec.opponents == opponents


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("KuhnPoker-v0", {"opponent": "selv"}, "directory of a run, got 'selv'; did you mean self"),
        ("KuhnPoker-v0", {"opponent": "self", "pool_size": 3}, "expected null with opponent: self"),
        ("KuhnPoker-v0", {"opponent": "past", "pool_size": 0}, "expected at least 1, got 0"),
        ("KuhnPoker-v0", {"opponent": "past", "past_share": 0}, "more than 0 and at most 1, got 0"),
        ("KuhnPoker-v0", {"opponent": "self", "past_share": 0.5}, "expected null with opponent"),
        ("Catch-v0", {"opponent": "self"}, "'Catch-v0' has no such option"),
    ],
)
def test_a_wrong_opponent_is_refused(name, options, message):
    with pytest.raises(ConfigError, match=message):
        make(name, **options)


def test_suites_without_turns_say_which_have_them():
    config = EnvConfig(suite="gymnasium", id="CartPole-v1", options={"opponent": "past"})
    with pytest.raises(ConfigError, match=r"no past in gymnasium; .* are jax and pgx"):
        make_environment(config, num_envs=1, seed=0)


def lose_the_turn(task):
    class Wrapped:
        observation, action_space = task.observation, task.action_space
        reset, step, action_mask = task.reset, task.step, task.action_mask

    return Wrapped()


def test_a_wrapper_that_loses_whose_turn_it_is_is_refused():
    config = EnvConfig(suite="jax", id=f"{__name__}:Turns", wrappers=(f"{__name__}:lose_the_turn",))
    with pytest.raises(ConfigError, match="without is_opponents_turn"):
        make_environment(config, num_envs=2, seed=0)
