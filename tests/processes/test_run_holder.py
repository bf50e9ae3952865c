"""The process that holds a run; the run is a stand-in for training."""

import os
import signal
import time
import types

import pytest

from sebulba.processes import run_holder
from sebulba.processes.cores import take_least_used_cores
from sebulba.processes.run_holder import RunHolder, with_resume
from tests.subprocesses import started, wait_for

# Prints where it is and what it was given, and waits for a signal if it is told to.
FAKE = """
import os, signal, sys, time
print("argv", sys.argv[1:], "in", os.getcwd(), os.environ.get("JAX_PLATFORMS"), flush=True)
print("blocked", signal.pthread_sigmask(signal.SIG_BLOCK, ()))
sys.stdout.write("no newline")
sys.stdout.flush()
if "wait" in sys.argv:
    signal.signal(signal.SIGINT, lambda number, frame: sys.exit(130))
    print("\\nwaits", flush=True)
    time.sleep(600)
sys.exit(5)
"""


@pytest.fixture
def order(tmp_path, monkeypatch):
    package = tmp_path / "sebulba"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "train.py").write_text(FAKE)
    mark = tmp_path / "shared" / "mark"
    mark.parent.mkdir()
    mark.touch()
    monkeypatch.setattr(run_holder, "take_least_used_cores", lambda count: None)
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    return {
        "argv": ["x.yaml"],
        "run_dir": str(tmp_path / "run"),
        "log": None,
        "directory": str(tmp_path),
        "variables": {"PYTHONPATH": str(tmp_path)},
        "num_cpus": 1,
        "uses_accelerator": False,
        "mark": str(mark),
    }


def follow_to_its_end(holder, order, *, is_again=False):
    """Return the exit code and the output of a run."""
    first = holder.follow(order, is_again, [])
    assert (first["is_start"], first["problem"], first["code"]) == (True, None, None)
    output = b""
    while True:
        reply = holder.follow(order, is_again, [])
        assert not reply["is_start"]
        output += reply["output"]
        if reply["code"] is not None:
            return reply["code"], output.decode()


def test_a_held_run_has_the_exit_code_output_and_directory_of_a_local_one(order, tmp_path):
    code, output = follow_to_its_end(RunHolder(), order)
    assert code == 5
    assert output == f"argv ['x.yaml'] in {tmp_path} cpu\nblocked set()\nno newline"


def test_a_run_in_a_process_that_blocks_signals_gets_them(order):
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # as Ray does
    try:
        holder = RunHolder()
        order["argv"] = ["wait"]
        output = holder.follow(order, False, [])["output"]
        while b"waits" not in output:
            output += holder.follow(order, False, [])["output"]
        assert b"blocked set()" in output
        reply = holder.follow(order, False, [signal.SIGINT])
        while reply["code"] is None:
            reply = holder.follow(order, False, [])
        assert reply["code"] == 130
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) >= {signal.SIGINT}
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_a_log_on_the_shared_file_system_gets_the_output(order, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    order |= {"log": str(tmp_path / "log"), "directory": "/nonexistent", "uses_accelerator": True}
    assert follow_to_its_end(RunHolder(), order) == (5, "")
    # A machine may lack the command's directory.
    assert (tmp_path / "log").read_text().startswith(f"argv ['x.yaml'] in {tmp_path} None")


def test_a_run_that_another_process_began_is_resumed_from_its_checkpoint(order, tmp_path):
    order["argv"] = ["x.yaml", "--resume", "7"]
    assert "['x.yaml', '--resume', '7']" in follow_to_its_end(RunHolder(), order)[1]
    again = follow_to_its_end(RunHolder(), order, is_again=True)[1]
    assert "['x.yaml', '--resume', '7']" in again  # There is no checkpoint.
    (tmp_path / "run" / "checkpoints" / "12").mkdir(parents=True)
    again = follow_to_its_end(RunHolder(), order, is_again=True)[1]
    assert "['x.yaml', '--resume=latest']" in again


def test_a_checkpoint_that_is_being_written_does_not_count(tmp_path):
    (tmp_path / "checkpoints" / "12.tmp").mkdir(parents=True)
    assert with_resume(["x"], tmp_path) == ["x"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mark": "/nonexistent/mark"}, "--run-dir: expected a directory that all machines share"),
        ({"log": "/nonexistent/log"}, "--ray: a run cannot start on"),
    ],
)
def test_a_machine_that_cannot_run_it_says_why(change, message, order, monkeypatch):
    monkeypatch.setattr(run_holder, "_SHARED_WITHIN_S", 0.0)
    reply = RunHolder().follow(order | change, False, [])
    assert message in reply["problem"]
    assert not reply["is_start"]


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="cores cannot be chosen")
def test_a_process_takes_the_cores_that_the_fewest_others_are_bound_to(monkeypatch):
    bound = {0: {0, 1, 2, 3}, 11: {0}, 12: {0, 1, 2, 3}, 13: {2}, 14: {1}, 15: {1}}
    taken = []
    monkeypatch.setattr(os, "listdir", lambda path: [*map(str, bound), "self"])
    monkeypatch.setattr(os, "sched_getaffinity", bound.__getitem__)
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cores: taken.append(set(cores)))
    for count in (1, 3, 9):
        take_least_used_cores(count)
    assert taken == [{3}, {0, 2, 3}, {0, 1, 2, 3}]


# Holds the lock of a directory until it is told to go on.
OWNER = """
import pathlib, sys
from sebulba.storage.lock import take_lock
lock = take_lock(pathlib.Path(sys.argv[1]), on_message=print)
print("holds", flush=True)
sys.stdin.readline()
lock.release()
"""


def test_a_resumed_run_waits_until_the_process_of_the_lost_one_has_saved(tmp_path):
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    with started("-c", OWNER, str(run_dir), stdin=-1, stdout=-1) as owner:
        assert owner.stdout.readline() == "holds\n"
        released = []

        def sleep(seconds):
            released.append(seconds)
            if len(released) == 3:
                print(file=owner.stdin, flush=True)
                owner.wait(60)

        with pytest.MonkeyPatch.context() as patch:
            fake_time = types.SimpleNamespace(**vars(time) | {"sleep": sleep})
            patch.setattr("sebulba.storage.lock.time", fake_time)
            run_holder.wait_until_released(run_dir, within_s=600.0)
        assert len(released) == 3
    wait_for(lambda: not (run_dir / "run.lock").exists())
    run_holder.wait_until_released(run_dir, within_s=600.0)  # Nobody holds it.
