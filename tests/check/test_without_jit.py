"""Serial training and the check run without jit, so that a debugger sees numbers."""

import os
import re
import subprocess
import sys

import pytest

TINY = """
env: {suite: jax, id: Bandit-v0}
actor: {threads_per_device: 1, num_envs: 2, trajectory_length: 4}
learner: {policy_lag: 0}
agent: {name: a2c, hidden_sizes: [4]}
run: {total_env_steps: 16}
"""


DEBUGGED = """
from tests.check.small_agents import ImportanceAgent


class Debugged(ImportanceAgent):
    def loss(self, networks, experience, key, clock):
        loss, aux = super().loss(networks, experience, key, clock)
        # As typed at a breakpoint.
        print("rewards:", float(experience.trajectory.env_steps.reward.sum()))
        print("loss:", loss)
        return loss, aux
"""


def run_module(module, *arguments, path, config_text=TINY):
    config = path / "tiny.yaml"
    config.write_text(config_text)
    python_path = os.pathsep.join([*sys.path, str(path)])
    return subprocess.run(
        [sys.executable, "-m", module, str(config), *arguments],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "JAX_DISABLE_JIT": "1", "PYTHONPATH": python_path},
    )


@pytest.mark.slow
def test_serial_training_without_jit(tmp_path):
    run_dir = tmp_path / "run"
    result = run_module(
        "sebulba.train", "--run.mode", "serial", "--run-dir", str(run_dir), path=tmp_path
    )
    assert result.returncode == 0, result.stderr
    assert (run_dir / "summary.json").exists()


@pytest.mark.slow
def test_the_check_without_jit(tmp_path):
    result = run_module("sebulba.check", path=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "✗" not in result.stdout
    assert "JAX_DISABLE_JIT is set" in result.stdout
    assert "checking: the loss bootstraps at a truncation" in result.stderr


@pytest.mark.slow
def test_a_breakpoint_in_a_loss_shows_numbers(tmp_path):
    (tmp_path / "debugged.py").write_text(DEBUGGED)
    text = TINY.replace("{name: a2c, hidden_sizes: [4]}", "{name: 'debugged:Debugged'}")
    arguments = ("--run.mode", "serial", "--run-dir", str(tmp_path / "run"))
    result = run_module("sebulba.train", *arguments, path=tmp_path, config_text=text)
    assert result.returncode == 0, result.stderr
    assert re.search(r"^rewards: -?\d", result.stdout, re.MULTILINE)
    assert re.search(r"^loss: .*\d\.\d", result.stdout, re.MULTILINE)
