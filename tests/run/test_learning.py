"""Agents learn their tasks through the whole ring, on seeds that nothing was tuned on."""

import dataclasses
import json

import pytest

from sebulba.config import DevicesConfig
from sebulba.config.loading import load_config
from sebulba.references import CORES
from sebulba.run import training
from tests.extras import needs_search
from tests.run import resuming


def best_return(tmp_path, name, arguments=()):
    """Trains a config of the project to its end; returns the best mean return."""
    config = load_config(f"configs/{name}.yaml", ["--run-dir", str(tmp_path / "run"), *arguments])
    config = dataclasses.replace(config, devices=DevicesConfig(actor=(0,), learner=(0,)))
    assert training.train_to_exit_code(config) == 0
    return json.loads((tmp_path / "run" / "summary.json").read_text())["best_episode_return_mean"]


@pytest.mark.parametrize(
    "name",
    [
        "impala_bandit",
        pytest.param("ppo_bandit", marks=pytest.mark.slow),
        pytest.param("a2c_bandit", marks=pytest.mark.slow),
        "pg_bandit",
    ],
)
def test_every_agent_solves_the_bandit(tmp_path, name):
    """With rewards shifted by a row, or resets masked wrongly, nothing can be learned here."""
    assert best_return(tmp_path, name, ["--seed", "1001"]) >= 0.95


def test_ppo_learns_for_three_players(tmp_path):
    """Random players have a mean return of about -0.3, the best ones of 0.827."""
    assert best_return(tmp_path, "ppo_corridor", ["--seed", "1011"]) >= 0.8


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2001, 2006))
def test_a_value_function_that_sees_the_tide_learns_what_a_blind_one_has_not_learned(
    tmp_path, seed
):
    """Random players have a mean return of 2, the best ones of 8."""
    arguments = ["--seed", str(seed), "--agent.critic-observation"]
    seeing = best_return(tmp_path / "seeing", "mappo_tides", [*arguments, "state"])
    blind = [*arguments, "null", "--env.options", "{}"]
    assert best_return(tmp_path / "blind", "mappo_tides", blind) <= seeing - 0.5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "package", "env_steps"),
    [("ppo_simple_spread", "jaxmarl", 1_000_000), ("ppo_simple_spread_mpe2", "mpe2", 300_000)],
)
def test_ppo_learns_for_the_players_of_simple_spread(tmp_path, name, package, env_steps):
    """Random players have a mean return of -27.6 in JaxMARL's, of about -26 in MPE2's."""
    pytest.importorskip(package)
    run_dir, flags = tmp_path / "run", ("--run.total-env-steps", env_steps, "--seed", "1012")
    flags += ("--devices.actor", "[0]", "--devices.learner", "[0]")
    # In a process of its own: these packages promote types, which the tests forbid.
    with resuming.training(f"configs/{name}.yaml", run_dir, *flags) as process:
        _, stderr = process.communicate(timeout=280)
    assert process.returncode == 0, stderr
    best = json.loads((run_dir / "summary.json").read_text())["best_episode_return_mean"]
    assert best >= -23.5


def test_random_actions_do_not_learn(tmp_path):
    assert 15 < best_return(tmp_path, "random_cartpole", ["--seed", "1004"]) < 40


@pytest.mark.slow
def test_ppo_with_memory_solves_recall(tmp_path):
    assert best_return(tmp_path, "ppo_recall", ["--seed", "1005"]) >= 0.9


@pytest.mark.slow
@pytest.mark.parametrize("seed", ["1005", "1006"])
@pytest.mark.parametrize("core", CORES)
def test_ppo_solves_recall_with_every_core_within_200_000_env_steps(tmp_path, core, seed):
    arguments = ["--agent.core", core, "--seed", seed, "--run.total-env-steps", "200_000"]
    assert best_return(tmp_path, "ppo_recall", arguments) >= 0.95


@pytest.mark.slow
@pytest.mark.parametrize("core", CORES)
def test_pqn_solves_recall_with_every_core(tmp_path, core):
    assert best_return(tmp_path, "pqn_recall", ["--agent.core", core, "--seed", "1005"]) >= 0.9


@pytest.mark.slow
@pytest.mark.parametrize("core", CORES)
def test_r2d2_solves_recall_with_every_core(tmp_path, core):
    assert best_return(tmp_path, "r2d2_recall", ["--agent.core", core, "--seed", "1005"]) >= 0.9


@pytest.mark.slow
def test_ppo_with_attention_remembers_a_cue_for_100_steps(tmp_path):
    assert best_return(tmp_path, "ppo_recall_100", ["--seed", "1005"]) >= 0.95


@pytest.mark.slow
def test_impala_solves_catch(tmp_path):
    assert best_return(tmp_path, "impala_catch", ["--seed", "1002"]) >= 0.9


@pytest.mark.slow
def test_r2d2_solves_recall(tmp_path):
    assert best_return(tmp_path, "r2d2_recall", ["--seed", "1003"]) >= 0.9


@pytest.mark.slow
def test_ddqn_solves_the_bandit(tmp_path):
    assert best_return(tmp_path, "ddqn_bandit", ["--seed", "1004"]) >= 0.95


@pytest.mark.slow
def test_prioritised_dueling_ddqn_solves_the_bandit(tmp_path):
    arguments = ["--agent.priority-exponent", "0.6", "--agent.dueling-size", "32"]
    assert best_return(tmp_path, "ddqn_bandit", ["--seed", "1005", *arguments]) >= 0.95


@pytest.mark.slow
@pytest.mark.parametrize("distribution", ["categorical", "quantile", "null"])
def test_rainbow_solves_the_bandit(tmp_path, distribution):
    arguments = ["--agent.distribution", distribution]
    assert best_return(tmp_path, "rainbow_bandit", ["--seed", "1011", *arguments]) >= 0.95


@pytest.mark.slow
def test_pqn_solves_the_bandit(tmp_path):
    assert best_return(tmp_path, "pqn_bandit", ["--seed", "1010"]) >= 0.9


@pytest.mark.slow
def test_sac_solves_the_continuous_bandit(tmp_path):
    assert best_return(tmp_path, "sac_bandit", ["--seed", "1006"]) >= 0.9


@pytest.mark.slow
def test_ppo_solves_the_continuous_bandit(tmp_path):
    assert best_return(tmp_path, "ppo_continuous_bandit", ["--seed", "1007"]) >= 0.9


@pytest.mark.slow
@pytest.mark.parametrize("config", ["impala_bandit", "ppo_bandit", "a2c_bandit"])
def test_dictionaries_and_several_choices_are_learned_from(tmp_path, config):
    """The best is about 8.5; guessing the first choice gets 6.4, the second 5.9, both 3.5."""
    arguments = ["--env.id", "tests.envs.composite:CompositeTask", "--seed", "1008"]
    arguments += ["--run.stop-at-return", "null", "--run.total-env-steps", "200_000"]
    assert best_return(tmp_path, config, arguments) >= 7.5


@pytest.mark.slow
@pytest.mark.parametrize("config", ["impala_bandit", "a2c_bandit", "pg_bandit"])
def test_continuous_actions_are_every_on_policy_agents(tmp_path, config):
    """Always the middle gets about 0."""
    arguments = ["--env.id", "ContinuousBandit-v0", "--seed", "1009"]
    arguments += ["--run.stop-at-return", "0.9", "--run.total-env-steps", "200_000"]
    arguments += ["--agent.entropy-cost", "0.0", "--agent.initial-log-std", "-1.0"]
    assert best_return(tmp_path, config, arguments) >= 0.7


@pytest.mark.slow
def test_ppo_learns_from_frames_of_ataris_size(tmp_path):
    assert best_return(tmp_path, "ppo_catch_pixels", ["--seed", "1011"]) >= 0.95


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2000, 2002))
def test_ppo_runs_with_the_cheetah(tmp_path, seed):
    assert best_return(tmp_path, "ppo_halfcheetah", ["--seed", str(seed)]) >= 1500


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2000, 2005))
@pytest.mark.parametrize(
    ("name", "bar"),
    [
        ("impala_cartpole", 475),
        ("impala_catch", 0.9),
        ("impala_recall", 0.9),
        ("impala_bandit", 0.95),
        ("ppo_cartpole", 475),
        ("ppo_recall", 0.9),
        ("ppo_recall_100", 0.9),
        ("ppo_bandit", 0.95),
        ("ppo_continuous_bandit", 0.95),
        ("a2c_cartpole", 400),
        ("a2c_bandit", 0.95),
        ("pg_cartpole", 195),
        ("pg_cartpole_episodes", 195),
        ("pg_bandit", 0.95),
        ("r2d2_recall", 0.9),
        ("r2d2_cartpole", 400),
        ("ddqn_cartpole", 450),
        ("ddqn_bandit", 0.95),
        ("rainbow_cartpole", 450),
        ("rainbow_bandit", 0.95),
        pytest.param("gumbel_muzero_cartpole", 475, marks=needs_search),
        pytest.param("gumbel_muzero_catch", 0.95, marks=needs_search),
        ("pqn_cartpole", 475),
        ("pqn_bandit", 0.9),
        ("pqn_recall", 0.9),
        ("sac_pendulum", -200),
        ("sac_bandit", 0.9),
    ],
)
def test_every_seed_learns(tmp_path, name, bar, seed):
    assert best_return(tmp_path, name, ["--seed", str(seed)]) >= bar


@pytest.mark.slow
def test_recall_cannot_be_learned_without_memory(tmp_path):
    arguments = ["--agent.lstm-size", "null", "--seed", "2000"]
    assert best_return(tmp_path, "impala_recall", arguments) < 0
