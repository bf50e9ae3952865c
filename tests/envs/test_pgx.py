"""pgx's games; skipped if the extra is not installed."""

import numpy as np
import pytest

from sebulba.config import EnvConfig
from sebulba.envs import make_environment
from sebulba.errors import ConfigError

pytest.importorskip("pgx")


def make(name, *, num_envs=16, **options):
    config = EnvConfig(suite="pgx", id=name, options=options)
    return make_environment(config, num_envs=num_envs, seed=1)


def random_legal(row, rng):
    return np.array([rng.choice(np.flatnonzero(mask)) for mask in row.action_mask], np.int32)


def first_legal(state, key):
    """Opponent that always plays the first legal action."""
    return state.legal_action_mask.argmax().astype(np.int32)


def test_games_are_played_against_an_opponent_from_both_sides():
    environment = make("tic_tac_toe")
    rng = np.random.default_rng(0)
    row = environment.reset()
    stones = row.observation.astype(int).sum(axis=(1, 2, 3))
    assert set(stones) == {0, 1}  # the opponent has begun some games
    outcomes = []
    for _ in range(30):
        row = environment.step(random_legal(row, rng))
        outcomes += list(row.reward[row.terminated])
        assert not row.reward[~row.terminated].any()
        assert row.action_mask.any(axis=-1).all()
    assert {-1.0, 0.0, 1.0} >= set(outcomes) >= {-1.0, 1.0}


def test_an_illegal_action_loses_the_game():
    environment = make("tic_tac_toe", opponent=f"{__name__}:first_legal")
    row = environment.step(random_legal(environment.reset(), np.random.default_rng(0)))
    row = environment.step(np.argmin(row.action_mask, axis=-1).astype(np.int32))
    assert row.terminated.all()
    np.testing.assert_array_equal(row.reward, -1.0)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("tictactoe", {}, "pgx has no 'tictactoe'; did you mean tic_tac_toe"),
        ("tic_tac_toe", {"oponent": "random"}, "did you mean opponent"),
        ("tic_tac_toe", {"max_episode_steps": 0}, "expected at least 1, got 0"),
    ],
)
def test_a_wrong_name_is_refused(name, options, message):
    with pytest.raises(ConfigError, match=message):
        make(name, **options)
