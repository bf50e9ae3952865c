"""Runs whose value function sees more than the policy, and the policy that they leave."""

import json

import numpy as np
import pytest

import sebulba
from sebulba.config.loading import load_config
from sebulba.evaluation.playing import record
from sebulba.export.__main__ import _parser, export
from sebulba.export.loader import Policy
from sebulba.process import EXIT_DONE
from sebulba.run import training

pytestmark = pytest.mark.usefixtures("no_thread_is_left")


def train(run_dir, env_steps, *flags):
    """Train for some env steps; return the summary."""
    flags = [*flags, "--run-dir", str(run_dir), "--run.total-env-steps", str(env_steps)]
    flags += ["--devices.actor", "[0]", "--devices.learner", "[0]", "--actor.num-envs", "4"]
    flags += ["--agent.hidden-sizes", "[4]", "--agent.num-epochs", "1"]
    flags += ["--agent.num-minibatches", "1"]
    assert training.train_to_exit_code(load_config("configs/mappo_tides.yaml", flags)) == 0
    return json.loads((run_dir / "summary.json").read_text())


def test_the_policy_is_loaded_evaluated_exported_and_filmed_without_the_state(tmp_path):
    run_dir, exported_dir = tmp_path / "run", tmp_path / "export"
    train(run_dir, 400)
    policy = sebulba.load_policy(run_dir)
    rng = np.random.default_rng(0)
    seen = rng.normal(size=(6, 5)).astype(np.float32)
    actions, _ = policy(seen)
    complete = {"observation": seen, "state": rng.normal(size=(6, 13)).astype(np.float32)}
    np.testing.assert_array_equal(policy(complete)[0], actions)
    with pytest.raises(ValueError, match=r"observation: expected float32\[5\]"):
        policy({"state": complete["state"]})
    arguments = [str(run_dir), "-o", str(exported_dir), "--num-envs", "6"]
    assert export(_parser().parse_args(arguments)) == EXIT_DONE
    exported = Policy(exported_dir)
    assert exported.description["observation"] == {"shape": [6, 5], "dtype": "float32"}
    np.testing.assert_array_equal(exported(seen)[0], actions)
    result = sebulba.evaluate(policy, episodes=4, parallel_envs=2)
    assert len(result.returns) == 4 and result.unfinished == 0
    record(policy.stored, tmp_path / "tides.gif", episodes=1, fps=9.0, seed=1, greedy=True)
    assert (tmp_path / "tides.gif").stat().st_size > 0


@pytest.mark.slow
def test_a_resumed_run_learns_what_an_uninterrupted_one_learns(tmp_path):
    whole = train(tmp_path / "whole", 9000)
    train(tmp_path / "resumed", 4000)
    resumed = train(tmp_path / "resumed", 9000, "--resume", "latest")
    for name in ("networks_crc32", "env_steps", "episodes"):
        assert resumed[name] == whole[name]
