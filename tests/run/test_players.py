"""Runs with several players: an exact resume, and the policy that they leave."""

import json

import numpy as np
import pytest

import sebulba
from sebulba.config.loading import load_config
from sebulba.export.__main__ import _parser, export
from sebulba.export.loader import Policy
from sebulba.run import training

pytestmark = pytest.mark.usefixtures("no_thread_is_left")


def train(run_dir, env_steps, *flags, config="ppo_corridor"):
    """Train for some env steps; return the summary."""
    flags = [*flags, "--run-dir", str(run_dir), "--run.total-env-steps", str(env_steps)]
    flags += ["--actor.threads-per-device", "1", "--run.stop-at-return", "null"]
    flags += ["--devices.actor", "[0]", "--devices.learner", "[0]"]
    assert training.train_to_exit_code(load_config(f"configs/{config}.yaml", flags)) == 0
    return json.loads((run_dir / "summary.json").read_text())


@pytest.mark.slow
def test_a_resumed_run_learns_what_an_uninterrupted_one_learns(tmp_path):
    whole = train(tmp_path / "whole", 9000)
    train(tmp_path / "resumed", 4000)
    resumed = train(tmp_path / "resumed", 9000, "--resume", "latest")
    for name in ("networks_crc32", "env_steps", "episodes", "episodes_cut"):
        assert resumed[name] == whole[name]
    assert whole["episodes_cut"] == 0


def test_a_policy_acts_for_the_rows_of_all_players_and_is_evaluated_by_teams(tmp_path):
    train(tmp_path / "run", 2000)
    policy = sebulba.load_policy(tmp_path / "run")
    actions, _ = policy(np.zeros((6, 7), np.float32))
    assert actions.shape == (6,)
    for greedy in (True, False):
        result = sebulba.evaluate(policy, episodes=4, parallel_envs=2, greedy=greedy)
        assert result.protocol["num_envs"] == 2
        assert len(result.returns) == 4 and result.unfinished == 0


@pytest.mark.slow
def test_loaded_and_exported_policies_act_without_what_only_the_value_function_sees(tmp_path):
    flags = ("--run.mode", "serial", "--actor.trajectory-length", "8", "--agent.num-epochs", "1")
    train(tmp_path / "run", 500, *flags, config="mappo_tides")
    policy = sebulba.load_policy(tmp_path / "run")
    seen = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)
    actions, _ = policy(seen)
    complete = {"observation": seen, "state": np.ones((6, 13), np.float32)}
    np.testing.assert_array_equal(policy(complete)[0], actions)
    arguments = [str(tmp_path / "run"), "-o", str(tmp_path / "export"), "--num-envs", "6"]
    export(_parser().parse_args(arguments))
    np.testing.assert_array_equal(Policy(tmp_path / "export")(seen)[0], actions)
    with pytest.raises(ValueError, match=r"observation: expected float32\[6, 5\], got a dict"):
        Policy(tmp_path / "export")(complete)
