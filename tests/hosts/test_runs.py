"""Runs on two hosts: equal results, checkpoints, and the loss of a host."""

import dataclasses
import functools
import json
import os
import pathlib
import re
import shutil
import signal

import pytest

from sebulba.config.loading import load_config
from sebulba.run import training
from sebulba.storage.checkpoints.restore import CheckpointError
from tests.hosts.processes import (
    CONFIG,
    ENDLESS,
    HEARTBEAT_S,
    NUM_DEVICES,
    TERMINATED,
    checkpoints,
    directories,
    end_of,
    hosts,
    last_line,
    launch,
    summaries,
)
from tests.rings import close, make_ring, resume
from tests.run.resuming import comparable, rows_in
from tests.subprocesses import wait_for

EXIT_CONFIG = 2
EXIT_FAILED = 3
EXIT_STUCK = 5
STEPS_PER_CYCLE = 40  # of both hosts, reset steps included


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    path = tmp_path_factory.mktemp("config") / "config.yaml"
    path.write_text(CONFIG)
    return path


@dataclasses.dataclass(frozen=True, kw_only=True)
class Loss:
    """A run in which a host lost the other, and that both then resumed to its end."""

    run_dir: pathlib.Path
    code: int  # of the host that lost the other
    output: str  # of that host
    step: int  # of the checkpoint that both had
    resumed_code: int
    resumed_output: str


@pytest.fixture(scope="module")
def loss_of(config, tmp_path_factory):
    """Returns a run that a host left by a signal; run at the first request."""

    @functools.cache
    def lose(victim, number):
        run_dir = tmp_path_factory.mktemp("runs") / "lost"
        with hosts(config, run_dir, *ENDLESS) as processes:
            wait_for(lambda: len(checkpoints(run_dir)) > 1, *processes)
            os.kill(processes[victim].pid, number)
            code, output = end_of(processes[1 - victim])
        step = checkpoints(run_dir)[-1]
        goal = ("--run.total-env-steps", str(STEPS_PER_CYCLE * (step + 20)))
        resumed_code, resumed_output = launch(config, run_dir, *goal, "--resume", "latest")
        return Loss(
            run_dir=run_dir,
            code=code,
            output=output,
            step=step,
            resumed_code=resumed_code,
            resumed_output=resumed_output,
        )

    return lose


@pytest.fixture(scope="module")
def finished(loss_of):
    """The directory of a finished run."""
    loss = loss_of(0, signal.SIGKILL)
    assert loss.resumed_code == 0, loss.resumed_output
    return loss.run_dir


def test_hosts_end_with_the_same_networks_at_the_same_cycle(finished):
    first, second = summaries(finished)
    assert first["networks_crc32"] == second["networks_crc32"] is not None
    for key in ("env_steps", "updates", "learner_cycles", "episodes", "final_episode_return_mean"):
        assert first[key] == second[key]


def test_env_steps_count_all_hosts(finished):
    learned = [sum(each["learned"] for each in one["ledger"]) for one in summaries(finished)]
    assert summaries(finished)[0]["env_steps"] == sum(learned)
    assert learned[0] > 0 and learned[1] > 0


def test_only_the_first_host_writes_metrics(finished):
    own, others = directories(finished)
    rows = rows_in(own)
    assert [row["env_steps"] for row in rows] == sorted({row["env_steps"] for row in rows})
    assert sorted(path.name for path in others.iterdir()) == ["checkpoints", "summary.json"]


def test_both_hosts_have_the_last_checkpoint(finished):
    assert checkpoints(finished)[-1] == summaries(finished)[0]["learner_cycles"]


@pytest.mark.slow
@pytest.mark.parametrize("lag", [0, 1, 2])
def test_hosts_repeat_a_run_bitwise_under_other_timings(lag, config, tmp_path):
    outcomes = []
    for seed in range(3):
        run_dir = tmp_path / str(seed)
        train = ("tests.hosts.delayed_train", seed)
        with hosts(config, run_dir, "--learner.policy-lag", lag, train=train) as processes:
            for process in processes:
                code, output = end_of(process)
                assert code == 0, output
        first, second = summaries(run_dir)
        assert first["networks_crc32"] == second["networks_crc32"]
        outcomes.append((first["networks_crc32"], comparable(rows_in(run_dir))))
    assert all(outcome == outcomes[0] for outcome in outcomes)


def test_a_single_host_continues_a_run_of_two(config, finished, tmp_path, capsys):
    run_dir = tmp_path / "run"
    shutil.copytree(finished, run_dir)
    before = summaries(finished)[0]
    goal = before["env_steps"] + 200
    flags = ["--run-dir", str(run_dir), "--resume", "latest", f"--run.total-env-steps={goal}"]
    assert training.train_to_exit_code(load_config(str(config), flags)) == 0
    log = capsys.readouterr().err
    assert f"resumes at cycle {before['learner_cycles']} (restart" in log
    assert "hosts: 1 instead of 2: a learner cycle takes 20 transitions instead of 40" in log
    assert "gradients are the mean over 2 learner devices instead of 4" in log
    after = json.loads((run_dir / "summary.json").read_text())
    assert after["env_steps"] >= goal
    # The ledgers of both hosts are continued.
    assert sum(each["learned"] for each in after["ledger"]) == after["env_steps"]
    assert after["episodes"] > before["episodes"]


def test_an_experience_that_depends_on_the_number_of_hosts_is_refused_by_name(config, finished):
    flags = ["--agent.name", "tests.hosts.counting:HostCountingAgent"]
    ring = make_ring(load_config(str(config), flags))
    with pytest.raises(CheckpointError, match=r"learner\.experience\.trajectories_of"):
        resume(ring, finished / "checkpoints")
    close(ring)


@pytest.mark.slow
def test_hosts_resume_together(config, finished):
    earlier = summaries(finished)[0]
    more = ("--run.total-env-steps", str(earlier["env_steps"] + 400), "--resume", "latest")
    code, output = launch(config, finished, *more)
    assert code == 0, output
    assert f"[1] resumes at cycle {earlier['learner_cycles']} (exact" in output
    first, second = summaries(finished)
    assert first["env_steps"] >= earlier["env_steps"] + 400
    assert first["networks_crc32"] == second["networks_crc32"] != earlier["networks_crc32"]


def test_a_signal_to_one_host_stops_both_at_the_same_cycle_and_both_name_it(config, tmp_path):
    train = ("tests.hosts.slow_save",)
    with hosts(config, tmp_path / "run", *ENDLESS, train=train) as processes:
        wait_for(lambda: checkpoints(tmp_path / "run"), *processes)
        processes[1].send_signal(signal.SIGTERM)
        ends = [end_of(process) for process in processes]
    assert [code for code, _ in ends] == [TERMINATED, TERMINATED], ends
    first, second = summaries(tmp_path / "run")
    assert first["status"] == second["status"] == "interrupted"
    last = checkpoints(tmp_path / "run")[-1]
    assert first["learner_cycles"] == second["learner_cycles"] == last
    for _, output in ends:
        assert f"The last checkpoint is of cycle {last}; to resume" in output


@pytest.mark.parametrize(
    ("victim", "number"),
    [
        pytest.param(0, signal.SIGKILL, id="first-killed"),
        pytest.param(1, signal.SIGKILL, id="second-killed", marks=pytest.mark.slow),
        pytest.param(0, signal.SIGSTOP, id="first-stopped", marks=pytest.mark.slow),
        pytest.param(1, signal.SIGSTOP, id="second-stopped", marks=pytest.mark.slow),
    ],
)
def test_a_host_that_loses_the_other_ends_and_both_resume(victim, number, loss_of):
    loss = loss_of(victim, number)
    assert loss.code == EXIT_FAILED, loss.output
    assert "--resume latest" in last_line(loss.output)
    assert loss.resumed_code == 0, loss.resumed_output
    for host in range(2):
        assert f"[{host}] resumes at cycle {loss.step} (exact" in loss.resumed_output
    first, second = summaries(loss.run_dir)
    assert first["networks_crc32"] == second["networks_crc32"]


@pytest.mark.slow
def test_hosts_resume_from_before_a_save_in_which_one_died(config, tmp_path):
    run_dir = tmp_path / "run"
    flags = (*ENDLESS, "--checkpoint.keep", 1)
    with hosts(config, run_dir, *flags, train=("tests.hosts.dying_in_a_save",)) as processes:
        (first_code, _), (second_code, _) = [end_of(process) for process in processes]
    assert (first_code, second_code) == (EXIT_FAILED, -signal.SIGKILL)
    own, other = directories(run_dir)
    (step,) = checkpoints(run_dir)
    assert list((other / "checkpoints").glob("*.tmp")) != []
    assert max(int(path.name) for path in (own / "checkpoints").glob("*")) > step
    goal = ("--run.total-env-steps", str(STEPS_PER_CYCLE * (step + 20)))
    code, output = launch(config, run_dir, *goal, "--resume", "latest")
    assert code == 0, output
    assert f"[1] resumes at cycle {step} (exact" in output
    first, second = summaries(run_dir)
    assert first["networks_crc32"] == second["networks_crc32"]


@pytest.mark.slow
def test_a_host_that_raises_ends_the_other(config, tmp_path):
    run_dir = tmp_path / "run"
    raising = ("--agent.name", "tests.hosts.raising:RaisingAgent")
    with hosts(config, run_dir, *ENDLESS, *raising) as processes:
        (first_code, first), (second_code, second) = [end_of(process) for process in processes]
    assert (first_code, second_code) == (EXIT_FAILED, EXIT_FAILED)
    expected = r"RuntimeError: the second host fails \(.*\) – This happened in actor"
    assert re.search(expected, last_line(second))
    assert last_line(first).startswith("sebulba: ")
    assert "Results so far" in last_line(first)


def stop_the_second(config, run_dir, *, heartbeat_s, update_s):
    """Stop the second host in a learner cycle; return the first one's exit code and output."""
    limits = ("--learner.update-timeout-s", update_s, "--agent.name")
    heartbeat = ("--distributed.heartbeat-timeout-s", heartbeat_s)
    flags = (*ENDLESS, *limits, "tests.hosts.stopping:StoppingAgent")
    with hosts(config, run_dir, *flags, by_host={0: heartbeat, 1: heartbeat}) as processes:
        return end_of(processes[0])


@pytest.mark.slow
def test_an_update_that_waits_for_a_stopped_host_is_ended_by_the_watchdog(config, tmp_path):
    code, output = stop_the_second(config, tmp_path / "run", heartbeat_s=600, update_s=2)
    assert code == EXIT_STUCK, output
    line = last_line(output)
    assert "WatchdogError: the learner: update still running after" in line
    assert "the limit is 2 s (learner.update_timeout_s)" in line


@pytest.mark.slow
def test_an_update_that_waits_for_a_stopped_host_is_ended_by_the_heartbeat(config, tmp_path):
    code, output = stop_the_second(config, tmp_path / "run", heartbeat_s=HEARTBEAT_S, update_s=600)
    assert code == EXIT_FAILED, output
    assert "host 0 of 2 lost contact with a peer: it is dead, hung" in last_line(output)


def test_hosts_of_different_configs_do_not_start(config, tmp_path):
    different = {1: ("--actor.trajectory-length", 6)}
    with hosts(config, tmp_path / "run", by_host=different) as processes:
        ends = [end_of(process) for process in processes]
    for code, output in ends:
        assert code == EXIT_CONFIG, output
        expected = "the config's actor.trajectory_length to be equal on all, got 5 on host 0"
        assert expected in output
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount file systems")
def test_hosts_that_do_not_share_the_run_directory_do_not_start(config, tmp_path):
    train = ("tests.hosts.unshared_train", tmp_path)
    with hosts(config, tmp_path / "run", train=train) as processes:
        ends = [end_of(process) for process in processes]
    for code, output in ends:
        assert code == EXIT_CONFIG, output
        expected = "run_dir: expected a directory that all hosts share, but host 1 does not see in"
        assert expected in last_line(output)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("num_devices", [1, 4])
def test_hosts_with_other_numbers_of_devices_do_not_start(num_devices, config, tmp_path):
    with hosts(config, tmp_path / "run", devices=(NUM_DEVICES, num_devices)) as processes:
        ends = [end_of(process) for process in processes]
    for code, output in ends:
        assert code == EXIT_CONFIG, output
        expected = f"the devices to be equal on all, got 2 × cpu on host 0 and {num_devices} × cpu"
        assert expected in last_line(output)


def test_the_saved_config_is_the_same_for_every_host(finished):
    text = (finished / "config.yaml").read_text()
    assert "mode: null" in text
    assert json.loads((finished / "run.json").read_text())["versions"]["jax"]
