"""Runs against each other, in games of two players in turns: outcomes of pairs, and Elo ratings."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from sebulba.config import EnvConfig
from sebulba.envs import make_environment
from sebulba.envs.base import Environment, EnvironmentFault
from sebulba.envs.closing import CloseProblem
from sebulba.envs.opponent_options import OPTIONS
from sebulba.envs.turns import GameInTurns
from sebulba.errors import ConfigError
from sebulba.evaluation.opponents import move_of, state_before_games
from sebulba.evaluation.playing import play
from sebulba.evaluation.stored import StoredPolicy
from sebulba.toolkit.prng import stream
from sebulba.types import EnvStep, PyTree

_RESAMPLES = 1_000
_CONFIDENCE = 0.95
_ITERATIONS = 200  # of the ratings; each comes nearer by a factor
_ELO = 400.0 / np.log(10.0)  # of a logarithm of odds


@dataclasses.dataclass(frozen=True, kw_only=True)
class Match:
    """The games of two runs."""

    player: int  # the runs' numbers
    opponent: int
    returns: np.ndarray  # [games], the player's
    unfinished: int

    @property
    def scores(self) -> np.ndarray:
        """`[games]`: 1 for a game won, 1/2 for a draw, 0 for a loss."""
        return 0.5 + 0.5 * np.sign(self.returns)


def play_matches(
    runs: Sequence[StoredPolicy],
    *,
    names: Sequence[str],
    games: int,
    seed: int | None,
    greedy: bool | None,
    parallel_envs: int | None,
    max_episode_steps: int | None,
    is_interrupted: Callable[[], bool] = lambda: False,
    on_problem: Callable[[CloseProblem], None],
) -> tuple[list[Match], dict[str, Any]]:
    """Play each pair of runs against each other; who begins a game is drawn.

    The game is that of the first run. Equal arguments give equal results.

    Args:
        runs: two or more, of the same game.
        names: of the runs, for errors.
        games: of each pair.
        seed: of environments and sampled actions; None: the first run's.
        greedy: whether all take the modes of their policies; None: as the first run's evaluations.
        parallel_envs: games played together; None: `evaluation.parallel_envs` of the first run.
        max_episode_steps: step budget per game; None: that of the first run's evaluations.
        is_interrupted: asked between moves.
        on_problem: takes why the environments could not be closed.

    Returns:
        The matches, and the protocol of the first.

    Raises:
        ConfigError: the environment is no game of two in turns, or the runs have different ones.
    """
    first = runs[0]
    _check_in_turns(first)
    for name, other in zip(names, runs, strict=True):
        _check_same_game(name, other, first)
    settings = first.config
    is_greedy = settings.evaluation.greedy if greedy is None else greedy
    seed = settings.seed if seed is None else seed
    matches: list[Match] = []
    protocol: dict[str, Any] = {}
    for i, j in itertools.combinations(range(len(runs)), 2):
        player = dataclasses.replace(
            runs[i], config=dataclasses.replace(runs[i].config, env=_game_of(first))
        )
        evaluation, of_match = play(
            player,
            episodes=games,
            seed=seed,
            greedy=is_greedy,
            parallel_envs=parallel_envs or settings.evaluation.parallel_envs,
            max_episode_steps=max_episode_steps or settings.evaluation.max_episode_steps,
            wrap=functools.partial(
                _against,
                name=names[j],
                run=runs[j],
                key=jax.random.fold_in(jax.random.key(seed), len(matches)),
                greedy=is_greedy,
            ),
            is_interrupted=is_interrupted,
            on_problem=on_problem,
        )
        played = evaluation.result()
        returns = np.array([record.episode_return for record in played.records], np.float64)
        matches.append(Match(player=i, opponent=j, returns=returns, unfinished=played.unfinished))
        protocol = protocol or of_match
        if is_interrupted():
            break
    return matches, protocol


def _game_of(run: StoredPolicy) -> EnvConfig:
    """Return a run's game, whoever its opponent was."""
    env = run.config.env
    options = {name: value for name, value in env.options.items() if name not in OPTIONS}
    return dataclasses.replace(env, options={**options, "opponent": "self"})


def _check_in_turns(run: StoredPolicy) -> None:
    """Check that a run's environment is a game of two players in turns."""
    env = run.config.env
    try:
        environment = make_environment(_game_of(run), num_envs=1, seed=0)
        environment.close()
        is_in_turns = isinstance(environment, GameInTurns)
    except (ConfigError, EnvironmentFault):
        # It has no option that says who moves for the opponent.
        is_in_turns = False
    if not is_in_turns:
        raise ConfigError(
            f"expected runs of a game of two players in turns, got {env.id} of {env.suite}. To"
            " evaluate one run, name it alone"
        )


def _check_same_game(name: str, run: StoredPolicy, first: StoredPolicy) -> None:
    spaces = [
        (each.environment.observation_leaves, each.environment.action_space)
        for each in (run, first)
    ]
    if spaces[0] != spaces[1]:
        raise ConfigError(
            f"{name}: expected the observations and actions of {first.config.env.id}, the first"
            f" run's game, got those of {run.config.env.id}"
        )


def _against(
    environment: Environment, *, name: str, run: StoredPolicy, key: jax.Array, greedy: bool
) -> Environment:
    """Have a run move for the opponent; `key` is that of the match."""
    assert isinstance(environment, GameInTurns)
    key = stream(key, "opponent")
    first = state_before_games(run, key, num_envs=environment.num_envs, greedy=greedy)
    move = move_of(run, greedy=greedy)

    def move_with(state: PyTree, row: EnvStep, waiting: jax.Array) -> tuple[PyTree, PyTree]:
        networks, before = state
        action, after = move(networks, before, row, waiting)
        return action, (networks, after)

    # In the state, networks are an argument: pairs of runs with equal agents are compiled once.
    environment.play_against(name, move_with, (run.networks, first))
    return environment


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rating:
    """The Elo rating of a run among those that played, whose mean is 0."""

    elo: float
    low: float  # of the bootstrap interval
    high: float


def elo_ratings(matches: Sequence[Match], num_runs: int, *, seed: int) -> list[Rating]:
    """Return the ratings that make the outcomes most likely, with 95 % intervals over games.

    A draw is half a win. Each pair is given one more draw, so that a run that wins all games has a
    finite rating. Ratings are those of Bradley and Terry, by the iteration of Hunter 2004 ("MM
    algorithms for generalized Bradley-Terry models", Annals of Statistics 32, equation 3).

    Args:
        matches: of the runs, which they connect.
        num_runs: how many.
        seed: of the bootstrap, which draws the games of each pair again.
    """
    rng = np.random.default_rng(seed)
    samples = np.zeros((_RESAMPLES + 1, num_runs, num_runs))  # wins of one run over another
    for match in matches:
        scores, count = match.scores, len(match.scores)
        drawn = scores[rng.integers(count, size=(_RESAMPLES, count))].sum(axis=1)
        won = np.concatenate([[scores.sum()], drawn])
        samples[:, match.player, match.opponent] = won + 0.5
        samples[:, match.opponent, match.player] = count - won + 0.5
    strengths = np.ones((_RESAMPLES + 1, num_runs))
    games, wins = samples + samples.swapaxes(1, 2), samples.sum(axis=2)
    for _ in range(_ITERATIONS):
        pairs = strengths[:, :, None] + strengths[:, None, :]
        strengths = wins / (games / pairs).sum(axis=2)
        strengths /= np.exp(np.log(strengths).mean(axis=1, keepdims=True))
    elo = _ELO * np.log(strengths)
    tail = (1.0 - _CONFIDENCE) / 2.0
    lows, highs = np.quantile(elo[1:], [tail, 1.0 - tail], axis=0)
    return [
        Rating(elo=float(each), low=float(low), high=float(high))
        for each, low, high in zip(elo[0], lows, highs, strict=True)
    ]


def mean_and_margin(values: np.ndarray) -> tuple[float, float]:
    """Return a mean, and what it may differ by in a 95 % interval of many independent games."""
    return float(values.mean()), float(1.96 * values.std() / np.sqrt(len(values)))
