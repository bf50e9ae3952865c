"""Child processes, when their parent gets a signal or is killed."""

import json
import pathlib
import signal
import subprocess
import sys

import pytest

from sebulba.processes.children import exit_code_of
from tests.hosts.processes import CONFIG, ENDLESS, checkpoints, summaries
from tests.subprocesses import DEADLINE_S, ROOT, environment, run_python, started, wait_for

# A stand-in for training: starts like a run, and counts the SIGTERMs that it receives.
CHILD = """
import pathlib, signal, sys, threading, time
from sebulba.processes.children import end_with_parent

received = []
signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
{before}
end_with_parent()
for _ in range(20):
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
pathlib.Path({directory!r}, "started").touch()
while not received:
    time.sleep(0.01)
time.sleep(0.2)
pathlib.Path({directory!r}, "ended").write_text("received " + str(len(received)))
"""
PARENT = """
import sys
from sebulba.processes.children import Children
sys.executable = {interpreter!r}
with Children().forwarding_signals() as children:
    children.start([]).wait()
"""


def parent_in(directory, *, before=""):
    """Start a process that starts a child, which writes `started` and `ended`."""
    script, interpreter = directory / "child.py", directory / "python"
    script.write_text(CHILD.format(directory=str(directory), before=before))
    interpreter.write_text(f"#!/bin/sh\nexec {sys.executable} {script}\n")
    interpreter.chmod(0o755)
    return started(
        "-c",
        PARENT.format(interpreter=str(interpreter)),
        variables=environment(PYTHONPATH=str(ROOT)),
    )


def has_ended(directory):
    """Return whether the child has ended; checks that it received one signal."""
    if not (directory / "ended").exists() or not (text := (directory / "ended").read_text()):
        return False
    assert text == "received 1"
    return True


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, 0)]
)
def test_a_child_gets_one_signal_when_its_parent_is_terminated_or_killed(number, code, tmp_path):
    with parent_in(tmp_path) as parent:
        wait_for((tmp_path / "started").exists, parent)
        parent.send_signal(number)
        assert parent.wait(DEADLINE_S) == code
        wait_for(lambda: has_ended(tmp_path))


def test_a_child_ends_when_its_parent_died_before_it_started(tmp_path):
    orphaned = (
        f"pathlib.Path({str(tmp_path)!r}, 'waits').touch()\n"
        "import os\nparent = os.getppid()\n"
        "while os.getppid() == parent: time.sleep(0.01)"
    )
    with parent_in(tmp_path, before=orphaned) as parent:
        wait_for((tmp_path / "waits").exists, parent)
        parent.kill()
        parent.wait(DEADLINE_S)
        wait_for(lambda: has_ended(tmp_path))


def test_a_process_without_a_parent_variable_outlives_its_parent(tmp_path):
    script = "import sebulba.processes.children as c; c.end_with_parent(); print('continues')"
    assert run_python("-c", script).stdout == "continues\n"


def test_exit_codes_are_those_of_a_shell():
    assert [exit_code_of(code) for code in (0, 3, -signal.SIGKILL)] == [0, 3, 137]


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG)
    return path


def has_checkpoint(run_dir):
    return any(path.name.isdecimal() for path in run_dir.glob("checkpoints/*"))


def is_running(pid):
    """Return whether a process exists and is not a zombie."""
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def children_of(pid):
    return [
        int(each) for each in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    ]


@pytest.mark.slow
def test_hosts_save_and_end_when_their_launcher_is_killed(config, tmp_path):
    run_dir = tmp_path / "run"
    flags = ("--local", 2, "--virtual-devices", 2, config, "--run-dir", run_dir, *ENDLESS)
    with started("-m", "sebulba.launch", *flags, stderr=subprocess.DEVNULL) as launcher:
        wait_for(lambda: checkpoints(run_dir), launcher)
        hosts = children_of(launcher.pid)
        launcher.kill()
        launcher.wait(DEADLINE_S)
        wait_for(lambda: not any(map(is_running, hosts)))
    assert len(hosts) == 2
    assert [each["status"] for each in summaries(run_dir)] == ["interrupted", "interrupted"]
    assert checkpoints(run_dir)[-1] == summaries(run_dir)[0]["learner_cycles"]


@pytest.mark.slow
def test_the_run_of_a_seed_saves_and_ends_when_its_parent_is_killed(config, tmp_path):
    run_dir, output = tmp_path / "run", tmp_path / "output"
    flags = (config, "--seeds", "0..1", "--run-dir", run_dir, *ENDLESS)
    with output.open("w") as file, started("-m", "sebulba.train", *flags, stderr=file) as trainer:
        first = run_dir / "seed-0"
        wait_for(lambda: has_checkpoint(first), trainer)
        (run,) = children_of(trainer.pid)
        trainer.kill()
        trainer.wait(DEADLINE_S)
        wait_for(lambda: not is_running(run))
    assert "interrupted" in output.read_text().splitlines()[-1], output.read_text()
    assert json.loads((first / "summary.json").read_text())["status"] == "interrupted"
    assert not (run_dir / "seed-1").exists()
