"""Training processes that are told to end, or killed, at any moment, and resumed."""

import json
import random
import re
import shlex
import time
from signal import SIGINT, SIGTERM

import chex
import pytest

from sebulba.config.loading import load_config
from sebulba.run.training import train_to_exit_code as train
from sebulba.storage.checkpoints.restore import steps_in
from tests.rings import close, make_ring, resume
from tests.run.resuming import comparable, rows_in, training
from tests.subprocesses import DEADLINE_S, run_python, wait_for

LONGEST_WAIT_S = 0.2  # Another moment each time, for what the run is at.
ENDLESS = ("--run.total-env-steps", "1000000000")
CONFIG = """
env: {{suite: jax, id: {env}}}
devices: {{actor: [0], learner: {learners}}}
actor: {{num_envs: 4, trajectory_length: 5}}
learner: {{policy_lag: {lag}}}
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
    def write(agent=TOY, env="Catch-v0", learners="[0]", interval_s="null", lag=0):
        path = tmp_path / "config.yaml"
        path.write_text(
            CONFIG.format(agent=agent, env=env, learners=learners, interval_s=interval_s, lag=lag)
        )
        return path

    return write


def assert_ends_as_the_uninterrupted_run(config, run_dir, whole_dir):
    """Resumes in this process to 1000 env steps from here; compares with a run without a break."""
    rows = rows_in(run_dir)
    env_steps = 1000 + (rows[-1]["env_steps"] if rows else 0)
    flags = ["--run.total-env-steps", str(env_steps)]
    resumed = load_config(str(config), [*flags, "--run-dir", str(run_dir), "--resume", "latest"])
    assert train(resumed) == 0
    whole = load_config(str(config), [*flags, "--run-dir", str(whole_dir)])
    assert train(whole) == 0
    assert comparable(rows_in(run_dir)) == comparable(rows_in(whole_dir))
    chex.assert_trees_all_equal(
        last_learner_state(resumed, run_dir), last_learner_state(whole, whole_dir)
    )


def last_learner_state(config, run_dir):
    ring = make_ring(config)
    resume(ring, run_dir / "checkpoints")
    close(ring)
    return ring.learner.state


@pytest.mark.parametrize(
    ("agent", "env", "learners", "numbers"),
    [
        pytest.param(TOY, "Catch-v0", "[0]", [SIGTERM], id="toy"),
        pytest.param(TOY, "Catch-v0", "[0]", [SIGINT], id="toy-sigint", marks=pytest.mark.slow),
        pytest.param(
            IMPALA, "Recall-v0", "[0]", 5 * [SIGTERM], id="impala", marks=pytest.mark.slow
        ),
        pytest.param(
            IMPALA, "Recall-v0", "[1, 2]", 5 * [SIGTERM], id="2-devices", marks=pytest.mark.slow
        ),
    ],
)
def test_run_that_a_signal_ended_resumes_bitwise(
    agent, env, learners, numbers, write_config, tmp_path
):
    config, run_dir = write_config(agent, env, learners), tmp_path / "run"
    rng = random.Random(learners)
    arguments = []
    for number in numbers:
        rows = len(rows_in(run_dir)) if (run_dir / "metrics.jsonl").exists() else 0
        with training(config, run_dir, *ENDLESS, *arguments) as process:
            wait_for((run_dir / "metrics.jsonl").exists, process)
            wait_for(lambda rows=rows: len(rows_in(run_dir)) > rows, process)
            time.sleep(rng.uniform(0.0, LONGEST_WAIT_S))
            process.send_signal(number)
            _, error = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 128 + number, error
        assert error.splitlines()[-1].startswith("interrupted: ")
        summary = json.loads((run_dir / "summary.json").read_text())
        assert summary["status"] == "interrupted"
        assert all(account["in_flight"] == account["queued"] == 0 for account in summary["ledger"])
        assert summary["learner_cycles"] == steps_in(run_dir / "checkpoints")[-1]
        assert shlex.split(summary["resume_command"])[-2:] == ["--resume", "latest"]
        arguments = ["--resume", "latest"]
    assert_ends_as_the_uninterrupted_run(config, run_dir, tmp_path / "whole")


@pytest.mark.parametrize(
    ("agent", "env", "kills", "lag"),
    [
        pytest.param(TOY, "Catch-v0", 1, 1, id="toy"),
        pytest.param(IMPALA, "Recall-v0", 20, 0, id="impala", marks=pytest.mark.slow),
        pytest.param(IMPALA, "Recall-v0", 10, 1, id="impala-lag-1", marks=pytest.mark.slow),
        pytest.param(R2D2, "Recall-v0", 20, 0, id="r2d2", marks=pytest.mark.slow),
    ],
)
def test_run_that_is_killed_while_it_saves_resumes_bitwise(
    agent, env, kills, lag, write_config, tmp_path
):
    """It saves all the time."""
    config, run_dir = write_config(agent, env, interval_s=0, lag=lag), tmp_path / "run"
    rng = random.Random(agent)
    arguments, resumed_at = [], []
    for _ in range(kills):
        before = steps_in(run_dir / "checkpoints")
        with training(config, run_dir, *ENDLESS, *arguments) as process:
            wait_for(lambda before=before: steps_in(run_dir / "checkpoints") > before, process)
            time.sleep(rng.uniform(0.0, LONGEST_WAIT_S))
            process.kill()
            _, error = process.communicate(timeout=DEADLINE_S)
        resumed_at += map(int, re.findall(r"resumes at cycle (\d+) \(exact", error))
        arguments = ["--resume", "latest"]
    assert len(resumed_at) == kills - 1
    assert resumed_at == sorted(set(resumed_at))
    assert_ends_as_the_uninterrupted_run(config, run_dir, tmp_path / "whole")


TWO_SIGNALS = """
import os, signal, sys
from sebulba.ring import run_end

run_end._SECOND_REQUEST_AFTER_S = float(sys.argv[1])
with run_end.RunEnd().listening() as end:
    os.kill(os.getpid(), signal.SIGTERM)
    print(end.signal, flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
    print("still here", flush=True)
"""


def test_second_signal_ends_the_process_at_once():
    process = run_python("-c", TWO_SIGNALS, "0.0")
    assert process.returncode == 128 + SIGTERM
    assert process.stdout == f"{SIGTERM}\n"


def test_a_signal_that_comes_twice_is_one_request():
    """GNU `timeout` signals a process, and then its group."""
    process = run_python("-c", TWO_SIGNALS, "3600.0")
    assert process.returncode == 0
    assert process.stdout == f"{SIGTERM}\nstill here\n"
