"""Hosts on machines that are lost on command; no Ray is needed."""

import contextlib
import os
import signal

import pytest

from sebulba.errors import ConfigError
from sebulba.hosts import ray_hosts
from sebulba.hosts.ray_hosts import run_hosts_on_ray
from sebulba.processes.ray_cluster import RayShare
from sebulba.processes.ray_runs import with_absolute_paths
from sebulba.processes.remote_process import ProcessGone
from sebulba.processes.remote_runs import RemoteRun
from tests.processes.holders import RUNS, START, FakeHolder, reply

DONE = (START, reply(code=0))
NOTICED = (START, reply(), reply(code=3))  # another host's loss
LOST = (START, ProcessGone("its node is dead"))


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Returns a function that runs hosts whose answers are given for each start."""
    starts = []

    def run(*answers, num_hosts=2, before_start=lambda: None):
        left = list(answers)

        @contextlib.contextmanager
        def machines(num_hosts, least, share, *, is_here, wait_s, signals):
            before_start()
            assert not starts or least == 1
            yield [] if signals else [None] * (len(left[0]) or num_hosts)

        def start(argv, places, share, *, run_dir, is_again, variables):
            starts.append((len(places), list(argv), is_again))
            silent = {"on_line": lambda line: None, "on_message": ray_hosts.say}
            return [
                RemoteRun(f"host {i}", {}, FakeHolder(*each), **silent)
                for i, each in enumerate(left.pop(0))
            ]

        monkeypatch.setattr(ray_hosts, "_machines", machines)
        monkeypatch.setattr(ray_hosts, "_start", start)
        monkeypatch.setattr(
            ray_hosts, "run_cluster", lambda share, num_runs: contextlib.nullcontext(True)
        )
        monkeypatch.setattr(ray_hosts, "_POLL_S", 0.0)
        code = run_hosts_on_ray(
            ["x.yaml"],
            num_hosts=num_hosts,
            share=RayShare(),
            run_dir=tmp_path,
            heartbeat_timeout_s=30.0,
        )
        return code, starts

    return run


def test_a_run_that_loses_a_host_is_resumed_on_those_that_are_left(run, tmp_path, capsys):
    (tmp_path / "checkpoints" / "7").mkdir(parents=True)
    code, starts = run([NOTICED, LOST, NOTICED], [DONE, DONE], num_hosts=3)
    assert code == 0
    resumed = ["x.yaml", "--resume=latest"]
    assert starts == [(3, ["x.yaml"], False), (2, resumed, True)]
    assert capsys.readouterr().err.splitlines() == [
        "host 1: lost: its node is dead",
        "lost host 1: the run is resumed from its newest checkpoint (restart 1 of at most 20)",
        "hosts: 2 instead of 3",
    ]


def test_a_first_machine_that_is_lost_before_the_start_is_replaced(run, capsys):
    assert run([], [DONE, DONE])[0] == 0
    assert "lost host 0: the run is resumed" in capsys.readouterr().err


def test_a_run_that_had_no_checkpoint_begins_again(run):
    assert run([LOST, NOTICED], [DONE])[1][1] == (1, ["x.yaml"], True)


def test_a_run_that_fails_without_a_loss_ends_with_its_code(run):
    code, starts = run([(START, reply(code=6)), NOTICED])
    assert (code, len(starts)) == (6, 1)


def test_the_number_of_restarts_is_bounded(run, monkeypatch):
    monkeypatch.setattr(ray_hosts, "MAX_RESTARTS", 2)
    code, starts = run(*[[LOST, NOTICED]] * 3)
    assert (code, len(starts)) == (137, 3)


def test_a_signal_ends_all_hosts_and_no_other_start_follows(run):
    started = []

    def before_start():
        started.append(True)
        if len(started) == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    code, starts = run([NOTICED, LOST], [DONE], before_start=before_start)
    assert (code, len(starts)) == (143, 1)


def test_a_machine_that_cannot_run_a_host_ends_the_others():
    other = FakeHolder(START, RUNS)
    unable = FakeHolder({"problem": "No module named sebulba"})
    hosts = [RemoteRun("x", {}, each, on_line=print, on_message=print) for each in (other, unable)]
    with pytest.raises(ConfigError, match="No module named sebulba"):
        ray_hosts._wait(hosts, [], grace_s=60.0)
    assert other.is_killed and unable.is_killed


def test_a_host_that_does_not_notice_the_end_of_another_is_ended(monkeypatch):
    hangs = FakeHolder(START, RUNS)
    holders = FakeHolder(START, reply(code=3)), hangs
    hosts = [RemoteRun("x", {}, each, on_line=print, on_message=print) for each in holders]
    monkeypatch.setattr(ray_hosts, "_POLL_S", 0.0)
    assert ray_hosts._wait(hosts, [], grace_s=0.0) == 3
    assert hangs.is_killed
    assert not hosts[1].is_lost  # So the run is not resumed.


def test_a_command_line_means_the_same_in_another_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.yaml").touch()
    argv = ["own.yaml", "--seed", "3", "--run-dir", "r", "--verbose"]
    assert with_absolute_paths(argv, tmp_path / "r") == [
        str(tmp_path / "own.yaml"),
        "--seed=3",
        f"--run-dir={tmp_path / 'r'}",
        "--verbose",
    ]
    # The name of a config that comes with Sebulba is no file.
    assert with_absolute_paths(["impala_catch"], tmp_path)[0] == "impala_catch"
