"""The policy of a run as the opponent in games in turns: in training, resuming and evaluation."""

import dataclasses
import json
import shutil

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sebulba
from sebulba.config import EnvConfig
from sebulba.config.loading import load_config
from sebulba.envs import make_environment
from sebulba.errors import ConfigError
from sebulba.evaluation.protocol import notable_settings
from sebulba.run import training
from sebulba.storage.checkpoints.restore import steps_in
from tests.envs.test_turns import Turns
from tests.rings import run_config
from tests.toys import ToyAgent, ToyState

NUM_ENVS = 16
GAME = f"{__name__}:Unmasked"


class Unmasked(Turns):
    """A game without action masks, which the toy agent's experience has no place for."""

    action_mask = None


class Remembers(ToyAgent):
    """Chooses how often it has moved in this game, whatever its networks are."""

    def act(self, networks, actor_state, env_step, *, greedy):
        _, extras, _ = super().act(networks, actor_state, env_step, greedy=greedy)
        count = jnp.where(env_step.is_first, 0, actor_state.count)
        return count, extras, ToyState(key=actor_state.key, count=count + 1)


def config_of(run_dir, *, agent=None, **options):
    overrides = {
        "env": {"suite": "jax", "id": GAME},
        "agent": {"name": "tests.toys:ToyAgent" if agent is None else f"{__name__}:{agent}"},
        "devices": {"actor": [0], "learner": [0]},
        "actor": {"num_envs": 8, "threads_per_device": 1, "trajectory_length": 6},
        "learner": {"policy_lag": 1},
        "run": {"total_env_steps": 300, "mode": "serial"},
        "run_dir": str(run_dir),
    }
    overrides["env"]["options"] = {"moves": 3, **options}
    return load_config(None, overrides)


@pytest.fixture(scope="module")
def opponent(tmp_path_factory):
    """Return the directory of a run whose policy remembers its moves."""
    path = tmp_path_factory.mktemp("opponents") / "remembers"
    assert training.train_to_exit_code(config_of(path, agent="Remembers")) == 0
    return path


def game_against(opponent, **changes):
    options = {"moves": 3, "opponent": str(opponent)}
    config = EnvConfig(suite="jax", id=GAME, options=options)
    config = dataclasses.replace(config, **changes)
    return make_environment(config, num_envs=NUM_ENVS, seed=3)


def test_the_policy_of_a_run_moves_with_its_memory(opponent):
    environment = game_against(opponent)
    environment.reset()
    begins = environment.whole_state.plies.task_state[:, 1] == 0
    assert 0 < begins.sum() < NUM_ENVS  # both players have begun games
    fused = environment.fused()
    step, state = jax.jit(fused.step), fused.state
    for turn in range(8):  # Two games: in each, the opponent begins anew.
        action = np.zeros(NUM_ENVS, np.int32)
        row = environment.step(action)
        state, traced = step(state, action)
        chex.assert_trees_all_equal(row, jax.tree.map(np.asarray, traced))
        if turn == 3:  # ended before; this is the first row of the next game
            begins = environment.whole_state.plies.task_state[:, 1] == 0
        if turn % 4 == 3:
            assert row.is_first.all()
            continue
        # A reply pays its number in the game; there is none after the last move.
        number = turn % 4 + np.where(begins, 1, 2)
        paid = np.where(begins | (turn % 4 < 2), number, 0)
        np.testing.assert_array_equal(row.reward, 1.0 - paid)


def test_a_run_against_another_repeats_and_resumes_exactly(opponent, tmp_path):
    config = config_of("unused", opponent=str(opponent))
    whole, _, _ = run_config(config)
    run_config(config, tmp_path, stop_at_cycle=3)
    resumed, _, was = run_config(
        dataclasses.replace(config, resume="latest"), tmp_path, which="latest"
    )
    assert was.level == "exact" and was.num_cycles == 3
    chex.assert_trees_all_equal(whole.learner.state.networks, resumed.learner.state.networks)
    one, _, _ = run_config(
        dataclasses.replace(config, run=dataclasses.replace(config.run, mode="anakin"))
    )
    chex.assert_trees_all_close(
        whole.learner.state.networks, one.learner.state.networks, rtol=1e-5, atol=1e-6
    )


def test_a_run_names_the_exact_checkpoint_that_it_plays_against(opponent, tmp_path):
    other = shutil.copytree(opponent, tmp_path / "other")
    config = config_of(tmp_path / "run", opponent=f"{other}@latest")
    assert training.train_to_exit_code(config) == 0
    (step,) = steps_in(other / "checkpoints")[-1:]
    path = tmp_path / "run"
    exact = load_config(str(path / "config.yaml")).env.options["opponent"]
    assert exact == f"{other}@{step}"
    assert exact in json.loads((path / "run.json").read_text())["code"]["files"]
    result = sebulba.evaluate(path, episodes=8)
    assert notable_settings(result.protocol["settings"]) == {"opponent": exact}
    # What its policy is does not depend on whom it has played against.
    shutil.rmtree(other)
    result = sebulba.evaluate(path, episodes=8, env_options={"opponent": "random"})
    assert result.protocol["settings"]["opponent"] == "random"
    with pytest.raises(ConfigError, match=r"env.options.opponent: expected a run directory"):
        sebulba.evaluate(path, episodes=8)


@pytest.mark.parametrize(
    ("suffix", "message"),
    [
        ("/nowhere", "expected a run directory with a config.yaml, got "),
        ("@bst", "expected best, latest or the number of a checkpoint, got 'bst'; did you mean be"),
        ("@12345", "expected checkpoint 12345 in "),
    ],
)
def test_an_opponent_that_is_no_run_is_refused(opponent, suffix, message):
    with pytest.raises(ConfigError, match=f"^env.options.opponent: .*{message}"):
        game_against(f"{opponent}{suffix}").reset()


def test_an_opponent_of_another_game_is_refused(opponent):
    environment = game_against(
        opponent, id="KuhnPoker-v0", options={"opponent": f"{opponent}@latest"}
    )
    with pytest.raises(
        ConfigError, match=r"of this game, got .*@latest, of jax tests.evaluation.test_o"
    ):
        environment.reset()


def test_a_damaged_opponent_is_refused_before_training(opponent, tmp_path, capfd):
    other = shutil.copytree(opponent, tmp_path / "other")
    for manifest in other.glob("checkpoints/*/manifest.json"):
        manifest.write_text("{}")
    config = config_of(tmp_path / "run", opponent=str(other))
    assert training.train_to_exit_code(config) == sebulba.process.EXIT_CONFIG
    assert "env.options.opponent: " in capfd.readouterr().err
    assert not (tmp_path / "run").exists()
