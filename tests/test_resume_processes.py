"""Training processes that are told to end, or killed, at any moment, and resumed."""

import json
import random
import re
import shlex
import signal
import subprocess
import sys
import time

import pytest

from sebulba import training
from sebulba.assembly import assemble
from sebulba.checkpoints.restore import steps_in
from sebulba.config.loading import load_config
from sebulba.run_state import resume
from tests.resuming import ROOT, comparable, rows_in, start_process
from tests.trees import assert_trees_equal

ENDLESS = ("--run.total-env-steps", "1000000000")
CONFIG = """
env: {{suite: jax, id: {env}}}
devices: {{actor: [0], learner: {learners}}}
actor: {{num_envs: 4, trajectory_length: 5}}
learner: {{max_policy_lag: 0}}
agent: {agent}
checkpoint: {{interval_s: {interval_s}}}
run: {{log_interval_env_steps: 170}}
"""
TOY = "{name: 'tests.toys:ToyAgent', updates_per_cycle: 2}"
IMPALA = "{name: impala, hidden_sizes: [8], lstm_size: 8}"
R2D2 = (
    "{name: r2d2, hidden_sizes: [8], lstm_size: 8, dueling_size: 8, burn_in: 5, learn_length: 5,"
    " batch_size: 8, replay_capacity: 400, min_replay_rows: 100, replay_ratio: 4.0}"
)


@pytest.fixture
def write_config(tmp_path):
    def write(agent=TOY, env="Catch-v0", learners="[0]", interval_s="null"):
        path = tmp_path / "config.yaml"
        path.write_text(
            CONFIG.format(agent=agent, env=env, learners=learners, interval_s=interval_s)
        )
        return path

    return write


def wait_for(process, condition):
    """Waits until the condition holds, while the process runs."""
    while not condition():
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.01)


def assert_ends_as_the_uninterrupted_run(config, run_dir, whole_dir):
    """Resumes in this process to 1000 env steps from here; compares with a run without a break."""
    rows = rows_in(run_dir)
    env_steps = 1000 + (rows[-1]["env_steps"] if rows else 0)
    flags = ["--run.total-env-steps", str(env_steps)]
    resumed = load_config(str(config), [*flags, "--run-dir", str(run_dir), "--resume", "latest"])
    assert training.train(resumed) == 0
    whole = load_config(str(config), [*flags, "--run-dir", str(whole_dir)])
    assert training.train(whole) == 0
    assert comparable(rows_in(run_dir)) == comparable(rows_in(whole_dir))
    assert_trees_equal(last_learner_state(resumed, run_dir), last_learner_state(whole, whole_dir))


def last_learner_state(config, run_dir):
    ring = assemble(config, write_row=lambda row: None)
    resume(ring, run_dir / "checkpoints", "latest")
    ring.close_environments()
    return ring.learner.state


@pytest.mark.parametrize(
    ("agent", "env", "learners", "stops"),
    [
        pytest.param(TOY, "Catch-v0", "[0]", 1, id="toy"),
        pytest.param(IMPALA, "Recall-v0", "[0]", 5, id="impala", marks=pytest.mark.slow),
        pytest.param(IMPALA, "Recall-v0", "[1, 2]", 5, id="2-devices", marks=pytest.mark.slow),
    ],
)
def test_run_that_a_signal_ended_resumes_bitwise(
    agent, env, learners, stops, write_config, tmp_path
):
    config, run_dir = write_config(agent, env, learners), tmp_path / "run"
    rng = random.Random(learners)
    arguments = []
    for _ in range(stops):
        process = start_process(config, run_dir, *ENDLESS, *arguments)
        rows = len(rows_in(run_dir)) if (run_dir / "metrics.jsonl").exists() else 0
        wait_for(process, lambda: (run_dir / "metrics.jsonl").exists())
        wait_for(process, lambda rows=rows: len(rows_in(run_dir)) > rows)
        time.sleep(rng.uniform(0.0, 1.0))
        process.send_signal(signal.SIGTERM)
        asked_at = time.monotonic()
        _, error = process.communicate(timeout=60)
        assert process.returncode == 128 + signal.SIGTERM, error
        assert time.monotonic() - asked_at < 10.0
        summary = json.loads((run_dir / "summary.json").read_text())
        assert summary["learner_cycles"] == steps_in(run_dir / "checkpoints")[-1]
        assert shlex.split(summary["resume_command"])[-2:] == ["--resume", "latest"]
        arguments = ["--resume", "latest"]
    assert_ends_as_the_uninterrupted_run(config, run_dir, tmp_path / "whole")


@pytest.mark.parametrize(
    ("agent", "env", "kills"),
    [
        pytest.param(TOY, "Catch-v0", 1, id="toy"),
        pytest.param(IMPALA, "Recall-v0", 20, id="impala", marks=pytest.mark.slow),
        pytest.param(R2D2, "Recall-v0", 20, id="r2d2", marks=pytest.mark.slow),
    ],
)
def test_run_that_is_killed_while_it_saves_resumes_bitwise(
    agent, env, kills, write_config, tmp_path
):
    """It saves all the time."""
    config, run_dir = write_config(agent, env, interval_s=0), tmp_path / "run"
    rng = random.Random(agent)
    arguments, resumed_at = [], []
    for _ in range(kills):
        before = steps_in(run_dir / "checkpoints")
        process = start_process(config, run_dir, *ENDLESS, *arguments)
        wait_for(process, lambda before=before: steps_in(run_dir / "checkpoints") > before)
        time.sleep(rng.uniform(0.0, 1.0))
        process.kill()
        _, error = process.communicate(timeout=60)
        resumed_at += map(int, re.findall(r"resumes at cycle (\d+) \(exact", error))
        arguments = ["--resume", "latest"]
    assert len(resumed_at) == kills - 1
    assert resumed_at == sorted(set(resumed_at))
    assert_ends_as_the_uninterrupted_run(config, run_dir, tmp_path / "whole")


TWO_SIGNALS = """
import os, signal, sys
from sebulba.runner import StopSignal

with StopSignal().installed() as stop:
    os.kill(os.getpid(), signal.SIGTERM)
    print(stop.number, flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
    print("still here", flush=True)
"""


def test_second_signal_ends_the_process_at_once():
    process = subprocess.run(
        [sys.executable, "-c", TWO_SIGNALS], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert process.returncode == -signal.SIGTERM
    assert process.stdout == f"{signal.SIGTERM}\n"
