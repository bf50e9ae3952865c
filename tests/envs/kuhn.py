"""Kuhn poker as a tree in plain Python: the exact exploitability of a policy."""

import itertools

import numpy as np

CARDS, HISTORIES, ACTIONS = range(3), ("", "p", "b", "pb"), "pb"


def observations():
    """Return `[12, 7]`, what each card sees after each history, as `KuhnPoker` shows it."""
    rows = []
    for card, history in itertools.product(CARDS, range(4)):
        rows.append(np.concatenate([np.eye(3)[card], np.eye(4)[history]]))
    return np.array(rows, np.float32)


def payoff(history, cards):
    """Return what who begins wins at the end of a game; None: it has not ended."""
    if history in ("bp", "pbp"):
        return 1 if history == "bp" else -1
    if history in ("pp", "bb", "pbb"):
        stake = 1 if history == "pp" else 2
        return stake if cards[0] > cards[1] else -stake
    return None


def best_response_value(bets, seat):
    """Return what a best response wins a game in a seat.

    Args:
        bets: `[3, 4]`, the other's probability of a bet with a card after a history.
        seat: 0 begins.
    """

    def value(history, card, reach):
        """Return the response's value with a card, over the other's cards and their reach."""
        deals = [(card, other) if seat == 0 else (other, card) for other in CARDS if other != card]
        if payoff(history, deals[0]) is not None:
            wins = [payoff(history, deal) * (1 if seat == 0 else -1) for deal in deals]
            return sum(r * w for r, w in zip(reach, wins, strict=True))
        if len(history) % 2 == seat:
            return max(value(history + action, card, reach) for action in ACTIONS)
        others = [other for other in CARDS if other != card]
        at = HISTORIES.index(history)
        total = 0.0
        for action in ACTIONS:
            chances = [
                bets[other, at] if action == "b" else 1 - bets[other, at] for other in others
            ]
            total += value(
                history + action, card, [r * c for r, c in zip(reach, chances, strict=True)]
            )
        return total

    return sum(value("", card, [1 / 6, 1 / 6]) for card in CARDS)


def exploitability(bets):
    """Return what best responses to a policy win a game, on average over both seats.

    Args:
        bets: `[3, 4]`, the policy's probability of a bet with each card after each history.
    """
    return sum(best_response_value(bets, seat) for seat in (0, 1)) / 2


def bets_of(agent, networks):
    """Return the probabilities `[3, 4]` of an actor-critic agent's policy."""
    import jax
    import jax.numpy as jnp

    from sebulba.types import EnvStep

    seen = observations()
    false = jnp.zeros(len(seen), bool)
    row = EnvStep(
        observation=jnp.asarray(seen),
        reward=jnp.zeros(len(seen)),
        terminated=false,
        truncated=false,
        is_first=~false,
    )
    state = agent.init_actor_state(networks, len(seen), jax.random.key(0), 0)
    _, extras, _ = agent.act(networks, state, row, greedy=False)
    return np.asarray(jax.nn.softmax(extras.policy.logits))[:, 1].reshape(3, 4).astype(float)
