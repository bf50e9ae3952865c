"""The launcher of several processes on this machine."""

import os
import sys

import pytest

from sebulba import launch
from sebulba.errors import ConfigError
from sebulba.hosts.local import run_together
from sebulba.processes.command_line import take_count
from sebulba.processes.cores import cores_of_process


def test_a_flag_is_taken_out_of_a_command_line():
    argv = ["--local", "3", "c.yaml", "--seed=1"]
    assert take_count(argv, "--local") == (3, ["c.yaml", "--seed=1"])
    assert take_count(["--local=2"], "--local") == (2, [])
    assert take_count(["c.yaml"], "--local") == (None, ["c.yaml"])


@pytest.mark.parametrize("argv", [["--local"], ["--local", "0"], ["--local=x"], ["--local", "-1"]])
def test_a_flag_without_a_number_is_an_error(argv):
    with pytest.raises(ConfigError, match="--local: expected an integer of at least 1"):
        take_count(argv, "--local")


def test_a_flag_given_twice_is_an_error():
    with pytest.raises(ConfigError, match="expected it once, got 2 and 3"):
        take_count(["--local", "2", "--local", "3"], "--local")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["c.yaml"], "--local: expected the number of processes"),
        (["--local", "2", "no.yaml"], "no.yaml"),
        (["--local", "2"], "expected one config file"),
    ],
)
def test_a_wrong_command_line_exits_2_before_a_process_starts(argv, message, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["launch", *argv])
    with pytest.raises(SystemExit) as caught:
        launch.main()
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


# A stand-in for training: prints its number, and fails, hangs or ends.
FAKE = """
import signal, sys, time
place = dict(zip(sys.argv[1::2], sys.argv[2::2]))
number = place["--distributed.process-id"]
print("host", number, "of", place["--distributed.num-processes"], "ö", flush=True)
sys.stdout.write("no newline")
sys.stdout.flush()
if number == {failing!r}:
    sys.exit(6)
if {failing!r}:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)
"""


@pytest.fixture
def fake(monkeypatch, tmp_path):
    def install(failing):
        package = tmp_path / "sebulba"
        package.mkdir()
        (package / "__init__.py").write_text("")
        (package / "train.py").write_text(FAKE.format(failing=failing))
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        monkeypatch.chdir(tmp_path)

    return install


def test_the_first_failure_is_the_exit_code_and_the_others_are_killed(fake):
    fake("1")
    assert run_together([], num_processes=2, num_devices=None, grace_s=0.1) == 6


def test_every_line_is_prefixed_with_the_number_of_its_process(fake, capsys):
    fake("")
    assert run_together([], num_processes=2, num_devices=None) == 0
    lines = sorted(capsys.readouterr().err.splitlines())
    assert lines == [
        "[0] host 0 of 2 ö",
        "[0] no newline",
        "[1] host 1 of 2 ö",
        "[1] no newline",
    ]


CORES = """
import os, pathlib, sys
number = sys.argv[sys.argv.index("--distributed.process-id") + 1]
pathlib.Path("cores", number).write_text(" ".join(map(str, os.sched_getaffinity(0))))
"""


@pytest.mark.parametrize(
    ("num_cores", "num_processes", "cores_per_process", "expected"),
    [
        (4, 2, None, [{0, 1}, {2, 3}]),
        (5, 2, None, [{0, 1}, {2, 3}]),
        (4, 2, 1, [{0}, {1}]),
        (2, 4, None, [{0}, {1}, {0}, {1}]),
        (2, 2, 8, [{0, 1}, {0, 1}]),
        (3, 1, None, [{0, 1, 2}]),
    ],
)
def test_processes_share_cores_only_if_there_are_too_few(
    num_cores, num_processes, cores_per_process, expected, monkeypatch
):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(num_cores)))
    got = [
        cores_of_process(number, num_processes=num_processes, cores_per_process=cores_per_process)
        for number in range(num_processes)
    ]
    assert got == expected


def test_each_process_gets_its_cores_and_the_launcher_keeps_its_own(fake, tmp_path):
    fake("")
    (tmp_path / "sebulba" / "train.py").write_text(CORES)
    (tmp_path / "cores").mkdir()
    before = os.sched_getaffinity(0)
    assert run_together([], num_processes=2, num_devices=None, cores_per_process=1) == 0
    assert os.sched_getaffinity(0) == before
    for number in range(2):
        (core,) = cores_of_process(number, num_processes=2, cores_per_process=1)
        assert (tmp_path / "cores" / str(number)).read_text() == str(core)
