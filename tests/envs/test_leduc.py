"""Leduc poker in JAX, and the exploitability that tests of self-play compute."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sebulba.envs.jax_leduc import LeducPoker
from tests.envs import leduc

NUM_GAMES = 256


def test_leduc_poker_is_that_of_the_tree():
    task, rng = LeducPoker(), np.random.default_rng(0)
    state, seen = jax.vmap(task.reset)(jax.random.split(jax.random.key(0), NUM_GAMES))
    facts = jax.jit(
        jax.vmap(lambda state: (task.action_mask(state), task.is_opponents_turn(state)))
    )
    step = jax.jit(jax.vmap(task.step, in_axes=(0, 0, None)))
    begins, deals = np.asarray(state.player_begins), np.asarray(state.cards)
    assert 0 < begins.sum() < NUM_GAMES and len(np.unique(deals, axis=0)) == 24
    lines, running, ended = [["", ""] for _ in deals], np.ones(NUM_GAMES, bool), set()
    for _ in range(8):
        mask, opponents_turn = map(np.asarray, facts(state))
        action = np.ones(NUM_GAMES, np.int32)
        for i in np.flatnonzero(running):
            in_second = leduc.is_closed(lines[i][0])
            line = lines[i][in_second]
            assert opponents_turn[i] == ((len(line) % 2 == 0) != begins[i])
            own, public = deals[i, int(opponents_turn[i])], deals[i, 2]
            key = (int(own), int(public) if in_second else None, *lines[i])
            np.testing.assert_array_equal(seen[i], leduc.observe(key))
            np.testing.assert_array_equal(mask[i], leduc.masks()[key])
            action[i] = rng.choice(np.flatnonzero(mask[i]))
            lines[i][in_second] += leduc.MOVES[action[i]]
        state, seen, reward, over, truncated = step(state, action, jax.random.key(0))
        assert not truncated.any()
        for i in np.flatnonzero(running):
            cards = [int(card) for card in deals[i, :2]]
            outcome = leduc.payoff(cards if begins[i] else cards[::-1], int(deals[i, 2]), lines[i])
            assert over[i] == (outcome is not None)
            assert reward[i] == (outcome or 0) * (1 if begins[i] else -1)
        ended |= {tuple(lines[i]) for i in np.flatnonzero(running & over)}
        running &= ~np.asarray(over)
    assert not running.any() and len(ended) > 40


def test_illegal_actions_are_calls():
    task = LeducPoker()
    state, _ = task.reset(jax.random.key(0))
    for action, same_as in ((0, 1), (2, 2), (2, 2), (2, 1)):  # the last raise is the third
        expected = task.step(state, jnp.int32(same_as), jax.random.key(0))[0]
        state = task.step(state, jnp.int32(action), jax.random.key(0))[0]
        np.testing.assert_array_equal(state.moves, expected.moves)
        np.testing.assert_array_equal(state.paid, expected.paid)


def test_uniform_play_loses_what_openspiel_says():
    assert leduc.exploitability(leduc.uniform()) == pytest.approx(2.373611, abs=1e-6)


@pytest.mark.slow
def test_exploitability_is_that_of_openspiel():
    pyspiel = pytest.importorskip("pyspiel")
    policy = pytest.importorskip("open_spiel.python.policy")
    algorithm = pytest.importorskip("open_spiel.python.algorithms.exploitability")
    game, rng = pyspiel.load_game("leduc_poker"), np.random.default_rng(0)
    theirs = policy.TabularPolicy(game)
    keys = {state: _key_of(theirs.states[i]) for state, i in theirs.state_lookup.items()}
    masks = leduc.masks()
    assert set(keys.values()) == set(masks)
    for _ in range(3):
        ours = {key: rng.random(3) * mask for key, mask in masks.items()}
        ours = {key: chances / chances.sum() for key, chances in ours.items()}
        for state, key in keys.items():
            theirs.policy_for_key(state)[:] = ours[key]
        assert leduc.exploitability(ours) == pytest.approx(algorithm.exploitability(game, theirs))


def _key_of(state):
    """Return what the player to move sees, of a state of OpenSpiel, whose cards have suits."""
    tensor = np.asarray(state.information_state_tensor(state.current_player()))
    card, public = tensor[2:8].argmax() // 2, tensor[8:14]
    lines = [
        "".join("cr"[move.argmax()] for move in line if move.any())
        for line in tensor[14:].reshape(2, 4, 2)
    ]
    return int(card), int(public.argmax() // 2) if public.any() else None, *lines
