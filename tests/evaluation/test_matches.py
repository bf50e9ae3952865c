"""Runs that play a game in turns against each other."""

import dataclasses
import json
import shutil
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sebulba
from sebulba.config.loading import load_config
from sebulba.errors import ConfigError
from sebulba.evaluation import matches
from sebulba.evaluation.matches import Match, elo_ratings, mean_and_margin, play_matches
from sebulba.evaluation.stored import load_stored_policy
from sebulba.run import training
from sebulba.storage.checkpoints.restore import steps_in


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """Return the directory of a short run of self-play."""
    path = tmp_path_factory.mktemp("kuhn") / "run"
    flags = ["--actor.num-envs", "8", "--run.total-env-steps", "100", "--run.mode", "serial"]
    flags += ["--agent.hidden-sizes", "[8]", "--agent.num-epochs", "1"]
    flags += ["--agent.num-minibatches", "1"]
    config = load_config("configs/ppo_kuhn_poker.yaml", [*flags, "--run-dir", str(path)])
    assert training.train_to_exit_code(config) == 0
    return path


def always(stored, action):
    """Return the policy with networks that choose one action whatever they see."""
    last = jnp.array([-50.0, 50.0]) if action == 1 else jnp.array([50.0, -50.0])

    def set_last(leaf):
        if leaf.shape[-1:] != (2,):
            return leaf
        return jnp.zeros_like(leaf) + (last if leaf.ndim == 1 else 0.0)

    params = jax.tree.map(set_last, stored.networks.params)
    return dataclasses.replace(stored, networks=dataclasses.replace(stored.networks, params=params))


def play(runs, **changes):
    options = {
        "names": [f"run {i}" for i in range(len(runs))],
        "games": 24,
        "seed": 0,
        "greedy": True,
        "parallel_envs": 8,
        "max_episode_steps": None,
        "on_problem": print,
    }
    return play_matches(runs, **options | changes)


def test_each_run_plays_with_its_own_networks(run_dir):
    stored = load_stored_policy(run_dir, "latest")
    bets, passes = always(stored, 1), always(stored, 0)
    matches, protocol = play([bets, passes, bets])
    assert [(each.player, each.opponent) for each in matches] == [(0, 1), (0, 2), (1, 2)]
    np.testing.assert_array_equal(matches[0].returns, 1.0)  # the other folds, or cannot call
    np.testing.assert_array_equal(np.abs(matches[1].returns), 2.0)  # a bet and a call
    np.testing.assert_array_equal(matches[2].returns, -1.0)
    assert protocol["settings"]["opponent"] == "run 1"


def test_each_match_and_seed_has_random_numbers_of_its_own_for_the_opponent(run_dir, monkeypatch):
    keys = []

    def state_before_games(run, key, **options):
        keys.append(tuple(jax.random.key_data(key).tolist()))
        return before(run, key, **options)

    before = matches.state_before_games
    monkeypatch.setattr(matches, "state_before_games", state_before_games)
    stored = load_stored_policy(run_dir, "latest")
    for seed, num_policies in ((1, 3), (2, 2), (1, 2)):  # three matches, one and one
        play([stored] * num_policies, games=1, seed=seed, greedy=False)
    assert keys[0] == keys[4] and len(set(keys[:4])) == 4


def test_a_run_of_another_game_is_refused(run_dir):
    stored = load_stored_policy(run_dir, "latest")
    space = dataclasses.replace(
        stored.environment, observation=jax.ShapeDtypeStruct((3,), jnp.float32)
    )
    with pytest.raises(ConfigError, match="run 1: expected the observations and actions of Kuhn"):
        play([stored, dataclasses.replace(stored, environment=space)])


@pytest.mark.parametrize(("name", "game"), [("impala", "of jax"), ("cartpole", "of envpool")])
def test_runs_of_an_environment_without_turns_are_refused(run_of, name, game):
    stored = load_stored_policy(run_of(name), "latest")
    with pytest.raises(ConfigError, match=rf"game of two players in turns, got \S+ {game}\. To"):
        play([stored, stored])


def test_ratings_say_how_often_runs_win():
    wins = np.repeat([1.0, -1.0, 0.0], [600, 200, 200])  # a score of 0.7
    matches = [Match(player=0, opponent=1, returns=wins, unfinished=0)]
    better, worse = elo_ratings(matches, 2, seed=0)
    assert better.elo == pytest.approx(-worse.elo)
    difference = better.elo - worse.elo
    assert 1 / (1 + 10 ** (-difference / 400)) == pytest.approx(0.7, abs=1e-3)
    assert better.low < better.elo < better.high
    mean, margin = mean_and_margin(matches[0].scores)
    assert mean == pytest.approx(0.7) and margin == pytest.approx(0.0248, abs=1e-3)


def test_ratings_of_three_runs_are_those_of_their_odds():
    def match(i, j, won):
        return Match(
            player=i, opponent=j, returns=np.repeat([1, -1], [won, 900 - won]), unfinished=0
        )

    # Odds of 2 and 2, and so of 4.
    matches = [match(0, 1, 600), match(1, 2, 600), match(0, 2, 720)]
    elo = [each.elo for each in elo_ratings(matches, 3, seed=0)]
    np.testing.assert_allclose(np.diff(elo), -400 * np.log10(2), atol=1)


def test_the_command_rates_runs(run_dir, tmp_path, capsys):
    path = tmp_path / "elo.json"
    flags = ["--episodes", "20", "--stochastic", "--json", str(path)]
    # An import of the module would bind the name of the function to it.
    command = sys.modules[sebulba.evaluate.__module__]
    options = command.parse([str(run_dir), str(run_dir), *flags])
    assert command.evaluate_to_exit_code(options) == 0
    results = json.loads(path.read_text())
    (match,) = results["matches"]
    assert match["won"] + match["drawn"] + match["lost"] == 20
    assert [each["run"] for each in results["elo"]] == [str(run_dir)] * 2
    assert "Elo" in capsys.readouterr().out


def test_the_command_rates_each_checkpoint_of_a_run(run_dir, tmp_path, capsys):
    command = sys.modules[sebulba.evaluate.__module__]
    flags = ["--checkpoint", "all", "--episodes", "20", "--json", str(tmp_path / "elo.json")]
    options = command.parse([str(run_dir), *flags])
    assert command.evaluate_to_exit_code(options) == 2
    assert "expected a run with two or more checkpoints, got 1 in" in capsys.readouterr().err
    path = shutil.copytree(run_dir, tmp_path / "run")
    config = load_config(path / "config.yaml", ["--run-dir", str(path), "--resume", "latest"])
    config = dataclasses.replace(
        config, run=dataclasses.replace(config.run, total_env_steps=config.run.total_env_steps * 2)
    )
    assert training.train_to_exit_code(config) == 0
    assert command.evaluate_to_exit_code(command.parse([str(path), *flags])) == 0
    results = json.loads((tmp_path / "elo.json").read_text())
    first, second = results["elo"]
    assert [each["run"] for each in (first, second)] == [
        f"{path}@{step}" for step in steps_in(path / "checkpoints")
    ]
    assert 100 <= first["env_steps"] < 200 <= second["env_steps"]
    (match,) = results["matches"]
    assert (match["run"], match["against"]) == (first["run"], second["run"])
