"""Leduc poker as a tree in plain Python: the exact exploitability of a policy.

A history is a line of moves for each round: `f` fold, `c` call or check, `r` raise. What a player
sees is a key `(card, public, first, second)`: ranks, `public` None in the first round, and the two
lines.
"""

import itertools

import numpy as np

RANKS, MOVES, RAISE_BY = range(3), "fcr", (2, 4)


def legal(line):
    """Return the legal moves after the moves of a round."""
    return ("f" if line[-1:] == "r" else "") + "c" + ("r" if line.count("r") < 2 else "")


def is_closed(line):
    """Return whether a round is over without a fold."""
    return len(line) > 1 and line[-1] == "c"


def decisions(line=""):
    """Return the lines after which somebody moves in a round."""
    if is_closed(line) or line[-1:] == "f":
        return []
    return [line, *itertools.chain(*(decisions(line + move) for move in legal(line)))]


def closed_lines(line=""):
    """Return the lines of complete first rounds."""
    if is_closed(line):
        return [line]
    moves = [move for move in legal(line) if move != "f"]
    return list(itertools.chain(*(closed_lines(line + move) for move in moves)))


def keys():
    """Return what a player can see, 288 keys."""
    before = [(card, None, line, "") for card in RANKS for line in decisions()]
    firsts = itertools.product(RANKS, RANKS, closed_lines(), decisions())
    return before + list(firsts)


def observe(key):
    """Return `[22]`, a key as `LeducPoker` shows it."""
    card, public, *lines = key
    moves = np.zeros((2, 4, 2))
    for i, line in enumerate(lines):
        for j, move in enumerate(line):
            moves[i, j, "cr".index(move)] = 1
    public = np.zeros(3) if public is None else np.eye(3)[public]
    return np.concatenate([np.eye(3)[card], public, moves.ravel()]).astype(np.float32)


def paid(lines):
    """Return the chips that who begins and the other have paid."""
    chips = [1, 1]
    for line, by in zip(lines, RAISE_BY, strict=True):
        for i, move in enumerate(line):
            if move != "f":
                chips[i % 2] = max(chips) + (by if move == "r" else 0)
    return chips


def payoff(cards, public, lines):
    """Return what who begins wins at the end of a game; None: it has not ended."""
    last = lines[1] or lines[0]
    if last[-1:] == "f":
        return min(paid(lines)) * (-1 if len(last) % 2 else 1)
    if not is_closed(lines[1]):
        return None
    first, second = ((card == public, card) for card in cards)
    return min(paid(lines)) * ((first > second) - (first < second))


def best_response_value(policy, seat):
    """Return what a best response wins a game in a seat.

    Args:
        policy: the other's probabilities `[3]` to fold, call and raise, by key.
        seat: 0 begins.
    """

    def value(card, public, lines, reach):
        """Return the response's value with a card, over the other's ranks and their reach."""
        if is_closed(lines[0]) and public is None:
            shown = np.array([[2 - (p == card) - (p == o) for o in RANKS] for p in RANKS]) / 4
            return sum(value(card, p, lines, reach * shown[p]) for p in RANKS)
        deals = [(card, other) if seat == 0 else (other, card) for other in RANKS]
        if payoff(deals[0], public, lines) is not None:
            wins = [payoff(deal, public, lines) for deal in deals]
            return float(reach @ wins) * (1 if seat == 0 else -1)
        i = int(is_closed(lines[0]))

        def after(move):
            return [line + move if j == i else line for j, line in enumerate(lines)]

        if len(lines[i]) % 2 == seat:
            return max(value(card, public, after(move), reach) for move in legal(lines[i]))
        chances = np.array([policy[other, public, *lines] for other in RANKS])
        return sum(
            value(card, public, after(move), reach * chances[:, MOVES.index(move)])
            for move in legal(lines[i])
        )

    dealt = (2 - np.eye(3)) * 2 / 30  # [3, 3] probabilities of both cards
    return sum(value(card, None, ["", ""], dealt[card]) for card in RANKS)


def exploitability(policy):
    """Return what best responses to a policy win a game, on average over both seats.

    Args:
        policy: the probabilities `[3]` to fold, call and raise, by key.
    """
    return sum(best_response_value(policy, seat) for seat in (0, 1)) / 2


def uniform():
    """Return the policy that plays all legal moves alike."""
    return {key: mask / mask.sum() for key, mask in masks().items()}


def masks():
    """Return the legal actions `[3]` of every key, as 0 and 1."""
    lines = {key: key[2] if key[1] is None else key[3] for key in keys()}
    return {
        key: np.array([move in legal(line) for move in MOVES], float) for key, line in lines.items()
    }


def policy_of(agent, networks):
    """Return an actor-critic agent's policy by key."""
    import jax
    import jax.numpy as jnp

    from sebulba.types import EnvStep

    legal_moves = masks()
    false = jnp.zeros(len(legal_moves), bool)
    row = EnvStep(
        observation=jnp.asarray([observe(key) for key in legal_moves]),
        reward=jnp.zeros(len(legal_moves)),
        terminated=false,
        truncated=false,
        is_first=~false,
        action_mask=jnp.asarray(list(legal_moves.values()), bool),
    )
    state = agent.init_actor_state(networks, len(legal_moves), jax.random.key(0), 0)
    _, extras, _ = agent.act(networks, state, row, greedy=False)
    chances = np.asarray(jax.nn.softmax(extras.policy.logits), float)
    return dict(zip(legal_moves, chances, strict=True))
