"""Results of evaluations, matches and ratings, as tables for people and as JSON for programs."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import rich.table

from sebulba.errors import escaped
from sebulba.evaluation.episodes import PlayedEpisodes
from sebulba.evaluation.matches import Match, Rating, mean_and_margin
from sebulba.evaluation.protocol import notable_settings
from sebulba.evaluation.statistics import Statistics


def evaluation_to_json(
    statistics: Statistics, protocol: Mapping[str, Any], played: PlayedEpisodes
) -> dict[str, Any]:
    """Return the statistics of an evaluation, its settings, and each episode."""
    episodes = []
    for env, records in enumerate(played.episodes):
        for record in records:
            episode: dict[str, Any] = {
                "env": env,
                "return": record.episode_return,
                "length": record.episode_length,
            }
            if record.returns_of_players:
                episode["returns_of_players"] = record.returns_of_players
            episodes.append(episode)
    return {
        "statistics": statistics,
        "episodes_unfinished": played.unfinished,
        "protocol": protocol,
        "episodes": episodes,
    }


def evaluation_table(
    statistics: Statistics, protocol: Mapping[str, Any], played: PlayedEpisodes
) -> rich.table.Table:
    """Return the table of the statistics, and below them of the settings that they depend on."""

    def number(key: str) -> str:
        value = statistics[key]
        return "unknown" if value is None else f"{value:,.2f}"

    of_players = [key for key in statistics if key.startswith("return_mean_of_player_")]
    steps = "steps of the environment" if of_players else "env steps"
    rows = {
        "return: mean ± standard deviation": f"{number('return_mean')} ± {number('return_std')}",
        "interquartile mean [95 % bootstrap interval]": (
            f"{number('return_iqm')} [{number('return_iqm_low')}, {number('return_iqm_high')}]"
        ),
        "minimum, maximum": f"{number('return_min')}, {number('return_max')}",
        "mean length": f"{number('length_mean')} {steps}",
        "episodes": f"{statistics['episodes']:,}",
    }
    if of_players:
        rows["mean return of each player"] = ", ".join(map(number, of_players))
    if played.unfinished:
        rows["unfinished, excluded"] = (
            f"{played.unfinished:,}, so long episodes are missing; increase --max-episode-steps"
        )
    conditions = {
        "policy": "greedy" if protocol["greedy"] else "sampled",
        "trained for": f"{protocol['env_steps_trained']:,} env steps,"
        f" {protocol['updates_trained']:,} updates (learner cycle {protocol['learner_cycle']:,})",
        "environments": f"{protocol['num_envs']}, episodes per environment fixed in advance",
        "seed": protocol["seed"],
        **notable_settings(protocol["settings"]),
    }
    table = rich.table.Table(show_header=False, title=f"{protocol['suite']} {protocol['id']}")
    for name, value in rows.items():
        table.add_row(name, value)
    table.add_section()
    for name, value in conditions.items():
        table.add_row(name, escaped(str(value)))
    return table


def matches_to_json(
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
    """Return the table of the games of each pair; see `matches_to_json`."""
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
    """Return the table of the ratings, the greatest first; see `matches_to_json`."""
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
