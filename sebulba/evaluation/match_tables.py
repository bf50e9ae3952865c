"""Matches and ratings of runs, as tables for people and as JSON for programs."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import rich.table

from sebulba.errors import escaped
from sebulba.evaluation.matches import Match, Rating, mean_and_margin


def to_json(
    matches: Sequence[Match],
    ratings: Sequence[Rating],
    names: Sequence[str],
    env_steps: Sequence[int],
) -> dict[str, Any]:
    """Return the games of each pair, and the rating of each run; margins are of 95 % intervals.

    Args:
        matches: with at least one game each.
        ratings: of the runs.
        names: of the runs.
        env_steps: that each was trained for.
    """
    elo = [
        {"run": name, "env_steps": count, **dataclasses.asdict(each)}
        for name, count, each in zip(names, env_steps, ratings, strict=True)
    ]
    return {"matches": [_payoff(match, names) for match in matches], "elo": elo}


def match_table(
    matches: Sequence[Match], names: Sequence[str], protocol: Mapping[str, Any]
) -> rich.table.Table:
    """Return the table of the games of each pair; see `to_json`."""
    table = rich.table.Table(title=f"{protocol['suite']} {protocol['id']}, who begins is drawn")
    for column in ("run", "against", "won, drawn, lost", "score [95 %]", "return [95 %]"):
        table.add_column(column)
    for match in matches:
        each = _payoff(match, names)
        table.add_row(
            escaped(each["run"]),
            escaped(each["against"]),
            ", ".join(f"{each[outcome]:,}" for outcome in ("won", "drawn", "lost")),
            f"{each['score']:.3f} ± {each['score_margin']:.3f}",
            f"{each['return_mean']:,.3f} ± {each['return_margin']:.3f}",
        )
    return table


def elo_table(
    ratings: Sequence[Rating], names: Sequence[str], env_steps: Sequence[int]
) -> rich.table.Table:
    """Return the table of the ratings, the greatest first; see `to_json`."""
    table = rich.table.Table(title="Elo, whose mean is 0")
    for column in ("run", "Elo [95 % bootstrap interval]", "env steps"):
        table.add_column(column)
    rated = zip(names, ratings, env_steps, strict=True)
    for name, each, count in sorted(rated, key=lambda row: -row[1].elo):
        rating = f"{each.elo:,.0f} [{each.low:,.0f}, {each.high:,.0f}]"
        table.add_row(escaped(name), rating, f"{count:,}")
    return table


def _payoff(match: Match, names: Sequence[str]) -> dict[str, Any]:
    won, drawn, lost = (int((match.scores == each).sum()) for each in (1.0, 0.5, 0.0))
    score, score_margin = mean_and_margin(match.scores)
    return_mean, return_margin = mean_and_margin(match.returns)
    return {
        "run": names[match.player],
        "against": names[match.opponent],
        "won": won,
        "drawn": drawn,
        "lost": lost,
        "unfinished": match.unfinished,
        "score": score,
        "score_margin": score_margin,
        "return_mean": return_mean,
        "return_margin": return_margin,
    }
