"""Run directories that are shared, moved, damaged or used again."""

import dataclasses
import json
import os
import shutil
import signal
import socket
import subprocess
import threading
import time

import pytest

from sebulba.config import flags
from sebulba.errors import ConfigError
from sebulba.run import training
from sebulba.storage import lock as locks
from sebulba.storage.checkpoints.restore import steps_in
from sebulba.storage.lock import RunLock, TakenOverError, take_lock
from sebulba.storage.names import LOCK
from sebulba.storage.run_dir import open_run_dir
from tests.faults.runs import last_line, make_config
from tests.run.resuming import rows_in
from tests.subprocesses import started
from tests.toys import ToyAgent

pytestmark = pytest.mark.shares_programs

ENDLESS = {"total_env_steps": 10**9, "log_interval_env_steps": 100}
HOLD = """
import pathlib, sys, time
from sebulba.storage.lock import take_lock
take_lock(pathlib.Path(sys.argv[1]), on_message=print)
print("held", flush=True)
time.sleep(3600)
"""


class MeddlingAgent(ToyAgent):
    """Lets a test do something to the run directory after four learner cycles."""

    meddle = None

    def num_updates_per_cycle(self, cycle):
        if cycle == 4:
            type(self).meddle()
        return 1


class FailingAgent(ToyAgent):
    """Fails before the first checkpoint."""

    def num_updates_per_cycle(self, cycle):
        if cycle == 2:
            raise ArithmeticError("not yet")
        return 1


@pytest.fixture
def meddler(monkeypatch):
    """Returns the name of an agent that calls a function, as `meddler(function)`."""
    monkeypatch.setattr(locks, "_HEARTBEAT_S", 0.02)

    def agent(meddle):
        monkeypatch.setattr(MeddlingAgent, "meddle", staticmethod(meddle))
        return f"{__name__}:MeddlingAgent"

    return agent


@pytest.fixture(scope="module")
def finished_once(tmp_path_factory):
    path = tmp_path_factory.mktemp("finished") / "run"
    assert training.train_to_exit_code(make_config(path)) == 0
    return path


@pytest.fixture
def finished(finished_once, tmp_path):
    """A copy of a finished run."""
    return shutil.copytree(finished_once, tmp_path / "run")


def resumed(run_dir, **changes):
    """Returns the config that resumes a run."""
    return dataclasses.replace(make_config(run_dir, **changes), resume="latest")


def holding(directory):
    """Starts a process that holds the lock of a directory, to be used in a `with`."""
    return started("-c", HOLD, directory, stdout=subprocess.PIPE)


def write_lock(directory, **changes):
    """Writes the lock of a process on another machine."""
    owner = dataclasses.replace(
        locks._Owner.of_this_process(), **{"host": "node7", "machine": "another", **changes}
    )
    (directory / LOCK).write_bytes(locks._content(owner))
    return directory / LOCK


def test_row_3_a_second_process_is_refused_and_told_who_writes(finished, capsys):
    steps = steps_in(finished / "checkpoints")
    with holding(finished) as holder:
        assert holder.stdout.readline() == "held\n"
        for config in (resumed(finished, run={"total_env_steps": 800}), make_config(finished)):
            assert training.train_to_exit_code(config) == 2
            line = last_line(capsys)
            assert f"in use by process {holder.pid} on host {socket.gethostname()}" in line
        holder.send_signal(signal.SIGSTOP)
        assert training.train_to_exit_code(make_config(finished)) == 2
        assert steps_in(finished / "checkpoints") == steps


def test_row_3_the_lock_of_a_killed_process_hinders_nobody(finished, capsys):
    with holding(finished) as holder:
        holder.stdout.readline()
        holder.kill()
        holder.wait()
    assert (finished / LOCK).exists()
    assert training.train_to_exit_code(resumed(finished, run={"total_env_steps": 800})) == 0
    assert f"process {holder.pid} on host {socket.gethostname()} is gone" in capsys.readouterr().err
    assert not list(finished.glob(f"{LOCK}*"))


def test_row_3_a_process_with_the_number_of_a_dead_one_is_not_its_owner(tmp_path):
    write_lock(tmp_path, machine=locks._machine(), process_started="1")
    take_lock(tmp_path, on_message=lambda text: None).release()


@pytest.mark.parametrize("stamps", [(1, 2), (2, 1), (10**18, 3)])
def test_row_3_an_owner_on_another_machine_is_alive_if_its_time_stamp_changes(
    stamps, tmp_path, monkeypatch
):
    path, left = write_lock(tmp_path), list(stamps)
    os.utime(path, ns=(left[0], left.pop(0)))
    monkeypatch.setattr(locks.time, "sleep", lambda s: os.utime(path, ns=(left[0], left[0])))
    with pytest.raises(ConfigError, match=r"in use by process .* on host node7"):
        take_lock(tmp_path, on_message=lambda text: None)


@pytest.mark.parametrize("content", [None, b"", b"[]", b"\xff"])
def test_row_3_an_owner_on_another_machine_that_shows_no_life_is_replaced(
    content, tmp_path, monkeypatch
):
    path = write_lock(tmp_path)
    if content is not None:
        path.write_bytes(content)
    waited, messages = [], []
    monkeypatch.setattr(locks.time, "sleep", waited.append)
    take_lock(tmp_path, on_message=messages.append).release()
    assert sum(waited) == 20.0
    assert "for up to 20 s" in messages[0] and "is gone" in messages[1]
    assert not any(tmp_path.iterdir())


def test_row_3_of_many_newcomers_one_gets_the_lock(tmp_path):
    for _ in range(20):
        write_lock(tmp_path, machine=locks._machine(), process_started="1")
        taken, refused = [], []
        barrier = threading.Barrier(8)

        def compete(barrier=barrier, taken=taken, refused=refused):
            barrier.wait()
            try:
                taken.append(take_lock(tmp_path, on_message=lambda text: None))
            except ConfigError:
                refused.append(None)

        threads = [threading.Thread(target=compete) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        holders = [each for each in taken if (tmp_path / LOCK).read_bytes() == each._content]
        assert len(holders) == 1 and len(taken) + len(refused) == 8
        # One that was put aside for a moment learns that it has lost.
        for each in taken:
            if each not in holders:
                with pytest.raises(TakenOverError):
                    each.verify()
        for each in taken:
            each.release()
    assert not any(tmp_path.iterdir())


@pytest.mark.slow
def test_row_3_a_run_that_was_taken_over_while_paused_saves_nothing_more(
    tmp_path, meddler, monkeypatch, capsys
):
    path = tmp_path / "run"

    def take_over():
        write_lock(path)
        (path / "summary.json").write_text("{}")

    # As if paused: no heartbeat finds out first.
    monkeypatch.setattr(RunLock, "_beat", lambda self: None)
    monkeypatch.setattr(locks, "_FRESH_S", 0.0)
    agent = meddler(take_over)
    config = make_config(path, agent=agent, run={"total_env_steps": 400})
    assert training.train_to_exit_code(config) == 3
    assert "host node7 has taken over" in last_line(capsys)
    assert steps_in(path / "checkpoints") == []
    assert (path / "summary.json").read_text() == "{}"
    assert all(row["env_steps"] <= 100 for row in rows_in(path))
    assert "node7" in (path / LOCK).read_text()


def test_row_3_the_heartbeat_ends_a_run_that_was_taken_over(tmp_path, meddler, capsys):
    path = tmp_path / "run"
    agent = meddler(lambda: write_lock(path))
    assert training.train_to_exit_code(make_config(path, agent=agent, run=ENDLESS)) == 3
    assert "has taken over" in last_line(capsys)
    assert steps_in(path / "checkpoints") == []


def test_row_3_a_lock_that_is_put_aside_for_a_moment_is_not_lost(tmp_path, monkeypatch):
    lock, aside = take_lock(tmp_path, on_message=lambda text: None), tmp_path / "aside"
    (tmp_path / LOCK).rename(aside)
    monkeypatch.setattr(locks.time, "sleep", lambda s: aside.rename(tmp_path / LOCK))
    lock.verify()
    lock.release()
    assert not any(tmp_path.iterdir())


def test_row_7_a_run_whose_directory_is_moved_ends_with_7(tmp_path, meddler, capsys):
    path, moved = tmp_path / "run", tmp_path / "moved"

    def move():
        while not steps_in(path / "checkpoints"):
            time.sleep(0.01)
        path.rename(moved)

    settings = {"agent": meddler(move), "checkpoint": {"interval_s": 0}}
    assert training.train_to_exit_code(make_config(path, **settings, run=ENDLESS)) == 7
    last = last_line(capsys)
    assert f"the run directory {path} is gone" in last and "Nothing could be saved" in last
    assert not path.exists()
    assert not (moved / "summary.json").exists()
    meddler(lambda: None)
    (moved / LOCK).unlink()  # Its owner, this process, is still alive.
    assert (
        training.train_to_exit_code(resumed(moved, **settings, run={"total_env_steps": 800})) == 0
    )


def _replace_by_a_file(path):
    shutil.rmtree(path)
    path.write_text("mine")


@pytest.mark.parametrize(
    "remove",
    [
        lambda path: (path / LOCK).unlink(),
        pytest.param(lambda path: shutil.rmtree(path, ignore_errors=True), marks=pytest.mark.slow),
        pytest.param(_replace_by_a_file, marks=pytest.mark.slow),
    ],
    ids=["its lock", "the directory", "the directory, for a file"],
)
def test_row_7_a_run_whose_directory_is_removed_ends_with_7(remove, tmp_path, meddler, capsys):
    path = tmp_path / "run"
    agent = meddler(lambda: remove(path))
    assert training.train_to_exit_code(make_config(path, agent=agent, run=ENDLESS)) == 7
    assert f"the run directory {path} is gone" in last_line(capsys)
    assert not path.exists() or not list(path.glob("checkpoints/*"))
    assert not path.is_file() or path.read_text() == "mine"


def test_row_7_a_run_that_reaches_its_goal_in_a_moved_directory_ends_with_7(
    tmp_path, meddler, monkeypatch, capsys
):
    path = tmp_path / "run"
    agent = meddler(lambda: path.rename(tmp_path / "moved"))
    monkeypatch.setattr(RunLock, "_beat", lambda self: None)
    assert training.train_to_exit_code(make_config(path, agent=agent)) == 7
    assert "is gone" in last_line(capsys)
    assert not path.exists()


@pytest.mark.parametrize(
    "tail",
    [
        b'{"env_steps": \xc3\n\x80',
        pytest.param(b"\xff\xfe\x00", marks=pytest.mark.slow),
        pytest.param(b"\xff\xfe\n", marks=pytest.mark.slow),
    ],
)
def test_row_8_bytes_that_are_no_text_are_dropped_on_resume(tail, tmp_path, capsys):
    path = tmp_path / "run"
    evaluation = {"interval_env_steps": 200, "episodes": 2, "parallel_envs": 2}
    settings = {"run": {"total_env_steps": 400}, "evaluation": evaluation}
    assert training.train_to_exit_code(make_config(path, **settings)) == 0
    names = ("metrics.jsonl", "metrics.csv", "evaluations.jsonl")
    for name in names:
        with open(path / name, "ab") as file:
            file.write(tail)
    settings["run"]["total_env_steps"] = 800
    assert training.train_to_exit_code(resumed(path, **settings)) == 0
    error = capsys.readouterr().err
    for name in names:
        assert error.count(f"{name}: dropped ") == 1
    of_training = [row["env_steps"] for row in rows_in(path) if "evaluation/episodes" not in row]
    assert of_training == sorted({*of_training})
    for name in names:
        assert (path / name).read_bytes().decode().endswith("\n")
    assert len((path / "metrics.csv").read_text().splitlines()) == len(rows_in(path)) + 1


def test_row_15_a_damaged_run_json_does_not_hinder_a_resume(finished):
    for content in ("[]", '{"resumed": 3}', "\0"):
        (finished / "run.json").write_text(content)
        _, lock = open_run_dir(resumed(finished), on_message=pytest.fail)
        lock.release()
        assert len(json.loads((finished / "run.json").read_text())["resumed"]) == 1


def test_row_21_a_run_that_learned_nothing_may_be_started_again(tmp_path, capsys):
    path = tmp_path / "run"
    failing = make_config(
        path, agent=f"{__name__}:FailingAgent", run={"log_interval_env_steps": 20}
    )
    assert training.train_to_exit_code(failing) == 3
    assert steps_in(path / "checkpoints") == []
    rows = rows_in(path)
    assert rows
    for number in (1, 2):
        (path / "job.log").write_text("mine")
        _, lock = open_run_dir(make_config(path), on_message=print)
        lock.release()
        assert f"its files are now in {path}/earlier/{number}" in capsys.readouterr().out
    assert rows_in(path / "earlier/1") == rows
    assert not (path / "earlier/1/earlier").exists()
    assert training.train_to_exit_code(make_config(path)) == 0
    assert (path / "job.log").read_text() == "mine"
    assert rows_in(path)[0]["env_steps"] >= 100
    assert training.train_to_exit_code(make_config(path)) == 2
    assert "to resume its run" in last_line(capsys)


def test_row_21_files_that_are_no_run_s_are_left_alone(tmp_path, capsys):
    (tmp_path / "thesis.tex").write_text("mine")
    assert training.train_to_exit_code(make_config(tmp_path)) == 2
    assert "expected a new or empty directory" in last_line(capsys)
    assert [each.name for each in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_run_is_resumed_by_its_directory_alone(finished, monkeypatch):
    monkeypatch.setenv("RUNS", str(finished.parent))
    for run_dir in (str(finished), "$RUNS/run"):
        config = flags.parse(["--run-dir", run_dir, "--resume", "latest"], "train", "")
        assert config == dataclasses.replace(make_config(run_dir), resume="latest")


def test_resuming_by_a_directory_without_a_run_ends_with_2(tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        flags.parse(["--run-dir", str(tmp_path), "--resume", "latest"], "train", "")
    assert end.value.code == 2
    assert "which has no config.yaml" in last_line(capsys)


def test_resuming_with_another_config_names_the_keys_and_the_command(finished, capsys):
    config = dataclasses.replace(resumed(finished), seed=5)
    assert training.train_to_exit_code(config) == 2
    last = last_line(capsys)
    assert "another seed (there 0, now 5);" in last
    assert last.endswith(f"python -m sebulba.train --run-dir {finished} --resume latest")
