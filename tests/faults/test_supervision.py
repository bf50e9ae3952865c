"""Threads that fail, and threads that never come back."""

import math
import re
import signal
import time
import types

import numpy as np
import pytest

from sebulba.agent_check import AgentError, num_updates_of
from sebulba.ring.clocks import ENVIRONMENT
from sebulba.ring.run_end import RunEnd
from sebulba.run import ending, training, watchdog
from sebulba.storage.checkpoints.restore import steps_in
from tests.disturbances import before, set_stop_deadlines, set_watchdog_time
from tests.faults import hanging
from tests.faults.runs import BREAKING, LONG_S, hang_at, last_line, make_config, summary_of
from tests.subprocesses import run_python
from tests.toys import ToyAgent

pytestmark = pytest.mark.shares_programs

BREAKING_CONFIG = """
env: {{suite: gymnasium, id: '{module}:Breaking-v0', options: {{steps: {steps}, then: {then}}}}}
devices: {{actor: [0], learner: [0]}}
actor: {{num_envs: 1, trajectory_length: 5, env_timeout_s: 1}}
agent: {{name: 'tests.toys:ToyAgent'}}
run: {{total_env_steps: 1_000_000_000, log_interval_env_steps: 10}}
checkpoint: {{interval_s: 0}}
"""


def run_breaking(tmp_path, *, steps, then):
    path = tmp_path / "config.yaml"
    path.write_text(BREAKING_CONFIG.format(module=BREAKING, steps=steps, then=then))
    return run_python("-m", "sebulba.train", path, "--run-dir", tmp_path / "run")


def test_environment_that_hangs_ends_the_process_with_code_5_and_all_stacks(tmp_path):
    process = run_breaking(tmp_path, steps=200, then="hang")
    ended_at = time.time()
    assert process.returncode == 5, process.stderr
    stacks, last = process.stderr, process.stderr.splitlines()[-1]
    assert "Current thread" in stacks and "breaking.py" in stacks
    assert "terminate called" not in stacks
    assert last.startswith("sebulba: WatchdogError: actor ")
    assert "environment still running after" in last
    assert "the limit is 1 s (actor.env_timeout_s)" in last
    assert "This happened in actor" in last
    (step, *_) = steps_in(tmp_path / "run/checkpoints")[-1:]
    assert f"The last checkpoint is of cycle {step}" in last
    assert last.endswith("--resume latest")
    summary_at = (tmp_path / "run/summary.json").stat().st_mtime
    assert summary_of(tmp_path / "run")["status"] == "failed"
    assert ended_at - summary_at < LONG_S


def test_start_that_hangs_ends_the_process_with_code_5_and_all_stacks(tmp_path):
    process = run_python(
        *("-m", "sebulba.train", "configs/impala_cartpole.yaml", "--run-dir", tmp_path / "run"),
        *("--env.suite", f"{hanging.__name__}:never_made", "--run.compile-timeout-s", "1"),
    )
    assert process.returncode == 5, process.stderr
    stacks, last = process.stderr, process.stderr.splitlines()[-1]
    assert "in never_made" in stacks
    assert last.startswith("sebulba: the start still runs after 1 s (run.compile_timeout_s)")


@pytest.mark.slow
def test_process_ends_soon_after_an_actor_s_exception(tmp_path):
    process = run_breaking(tmp_path, steps=200, then="fail")
    ended_at = time.time()
    assert process.returncode == 3, process.stderr
    failed_at = min(
        float(line.split()[-1]) for line in process.stdout.splitlines() if "failed at" in line
    )
    assert "the simulator lost its mind" in process.stderr.splitlines()[-1]
    assert "in step" in process.stderr and "breaking.py" in process.stderr
    assert summary_of(tmp_path / "run")["status"] == "failed"
    # A machine that does nothing else takes less than 2 s.
    assert ended_at - failed_at < LONG_S


def test_stuck_actor_ends_the_run_and_everything_that_was_learned_is_saved(
    tmp_path, monkeypatch, blocked, capsys
):
    release, ends = blocked
    hang_at(monkeypatch, "act", 12, release, ENVIRONMENT)
    monkeypatch.setattr("sebulba.run.watchdog._GRACE_S", 0.0)
    config = make_config(tmp_path, actor={"env_timeout_s": 1.0}, checkpoint={"interval_s": None})
    assert training.train_to_exit_code(config) == 5
    assert ends == [5]
    summary = summary_of(tmp_path)
    assert summary["status"] == "failed"
    # What was learned is saved, although no checkpoint was due.
    assert summary["learner_cycles"] > 0
    assert steps_in(tmp_path / "checkpoints") == [summary["learner_cycles"]]
    last = last_line(capsys)
    assert "WatchdogError: actor " in last
    assert f"The last checkpoint is of cycle {summary['learner_cycles']}" in last
    for account in summary["ledger"]:
        assert account["acted"] == sum(account.values()) - account["acted"]


@pytest.mark.parametrize(
    ("agent", "cycle", "what"),
    [
        ("HangsInCount", "fused", "the learner: update"),
        ("HangsInSharding", "fused", "actor 0: transfer"),
        ("HangsInFirstUpdate", "fused", "the learner: compile"),
        ("HangsInFirstAct", "fused", "actor 0: compile"),
        ("HangsInFirstAct", "stepped", "actor 0: compile"),
    ],
)
def test_5_an_agent_that_hangs_ends_the_run(agent, cycle, what, tmp_path, monkeypatch, capsys):
    """Watch the Python code of an agent wherever the run calls it."""
    ends = []
    monkeypatch.setattr(ending, "end_process", ends.append)
    set_stop_deadlines(monkeypatch, of_stuck_s=0.2)
    set_watchdog_time(monkeypatch, hanging.now)
    monkeypatch.setattr(watchdog, "_LONGEST_GAP_S", math.inf)  # the clock leaps
    agent = f"tests.faults.hanging:{agent}"
    # With a single actor in lock-step, no other thread is in a call that could hang.
    actor = {"cycle": cycle, "threads_per_device": 1}
    config = make_config(tmp_path, agent=agent, actor=actor)
    try:
        assert training.train_to_exit_code(config) == 5
    finally:
        hanging.released.set()
        hanging.join()
    assert ends == [5]
    last = last_line(capsys)
    assert last.startswith(f"sebulba: WatchdogError: {what} still running after "), last


@pytest.mark.parametrize(
    "value",
    [-3, 2.5, True, 10**9, 10**5000, None, "1", float("nan"), np.float32(1), np.True_],
    ids=lambda value: type(value).__name__,
)
def test_6_a_wrong_number_of_updates_is_an_error_of_the_agent(value):
    agent = types.SimpleNamespace(num_updates_per_cycle=lambda cycle: value)
    expected = r"num_updates_per_cycle\(7\): expected an int from 0 to 100,000, got .{1,140}$"
    with pytest.raises(AgentError, match=expected):
        num_updates_of(agent, 7)


def test_6_the_number_of_updates_is_checked_in_every_cycle(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        ToyAgent, "num_updates_per_cycle", lambda self, cycle: 1 if cycle < 4 else -3
    )
    assert training.train_to_exit_code(make_config(tmp_path)) == 3
    last = last_line(capsys)
    expected = "num_updates_per_cycle(4): expected an int from 0 to 100,000, got -3 (int)"
    assert last.startswith(f"sebulba: AgentError: {expected} – This happened in the learner"), last
    assert summary_of(tmp_path)["learner_cycles"] == 4


def test_learner_that_outlasts_a_stop_signal_ends_the_process_with_the_signal_s_code(
    tmp_path, monkeypatch, blocked, capsys
):
    release, ends = blocked
    hangs = hang_at(monkeypatch, "update", 1, release)

    def signal_once_it_learns(self):
        if hangs.is_set():
            self.signal = signal.SIGTERM
        return self.signal is not None

    monkeypatch.setattr(RunEnd, "closes_at_once", property(signal_once_it_learns))
    assert training.train_to_exit_code(make_config(tmp_path)) == 143
    assert ends == [143]
    last = last_line(capsys)
    # Actors may be compiling.
    assert last.startswith("sebulba: StuckError: ") and "did not end within 0.2 s" in last
    assert last.endswith("There is no checkpoint.")


def test_failure_that_other_threads_survive_is_still_the_cause(
    tmp_path, monkeypatch, blocked, capsys
):
    release, ends = blocked
    hangs = hang_at(monkeypatch, "update", 1, release)

    def fail_at_second(actor):
        if actor.point.cycle == 1:
            assert hangs.wait(LONG_S)
            raise RuntimeError("the actor broke")

    before("act", fail_at_second, setattr=monkeypatch.setattr)
    assert training.train_to_exit_code(make_config(tmp_path, learner={"policy_lag": None})) == 3
    assert ends == [3]
    last = last_line(capsys)
    assert re.match(
        r"sebulba: RuntimeError: the actor broke \(.*\) – This happened in actor ", last
    )
    # The other actor may be compiling.
    assert re.search(r"Also: .*\blearner\b.* did not end within 0\.2 s\.", last)


def test_exit_of_a_thread_is_a_failure(tmp_path, monkeypatch, capsys):
    def leave(_):
        raise SystemExit(0)

    before("update", leave, setattr=monkeypatch.setattr)
    assert training.train_to_exit_code(make_config(tmp_path)) == 3
    assert "SystemExit" in last_line(capsys)
    assert ending.exit_code_of(RunEnd()) == 0
