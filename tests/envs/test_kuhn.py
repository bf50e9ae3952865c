"""The exploitability that tests of self-play compute, on policies whose value is known."""

import numpy as np
import pytest

from tests.envs.kuhn import HISTORIES, best_response_value, exploitability


def equilibrium(alpha):
    """Return the equilibrium of Kuhn 1950 in which who begins bluffs with probability `alpha`."""
    bets = np.zeros((3, 4))
    bets[0, 0], bets[2, 0] = alpha, 3 * alpha
    bets[0, 1], bets[2, 1] = 1 / 3, 1
    bets[1, 2], bets[2, 2] = 1 / 3, 1
    bets[1, 3], bets[2, 3] = alpha + 1 / 3, 1
    return bets


@pytest.mark.parametrize("alpha", [0.0, 0.2, 1 / 3])
def test_equilibria_cannot_be_exploited(alpha):
    bets = equilibrium(alpha)
    assert exploitability(bets) == pytest.approx(0.0, abs=1e-12)
    assert best_response_value(bets, 0) == pytest.approx(-1 / 18)


def test_uniform_play_loses_eleven_twenty_fourths():
    assert exploitability(np.full((3, 4), 0.5)) == pytest.approx(11 / 24)


@pytest.mark.slow
def test_exploitability_is_that_of_openspiel():
    pyspiel = pytest.importorskip("pyspiel")
    policy = pytest.importorskip("open_spiel.python.policy")
    algorithm = pytest.importorskip("open_spiel.python.algorithms.exploitability")
    game, rng = pyspiel.load_game("kuhn_poker"), np.random.default_rng(0)
    for _ in range(20):
        bets, theirs = rng.random((3, 4)), policy.TabularPolicy(game)
        for card in range(3):
            for i, history in enumerate(HISTORIES):
                chance = bets[card, i]
                theirs.policy_for_key(f"{card}{history}")[:] = [1 - chance, chance]
        assert exploitability(bets) == pytest.approx(algorithm.exploitability(game, theirs))
