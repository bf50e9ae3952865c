"""The launcher of several processes on this machine."""

import os
import sys

import pytest

from sebulba import launch
from sebulba.launch import run_together
from sebulba.processes.cores import cores_of_process


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["c.yaml"], "expected --ray with the number of machines, or --local"),
        (["--local", "2", "--ray", "2", "c.yaml"], "--local: cannot be used with --ray"),
        (["--ray", "2", "--cores", "1", "c.yaml"], "--cores: cannot be used with --ray"),
        (["--local", "2", "--wait-s", "1", "c.yaml"], "--wait-s: cannot be used without --ray"),
        (["--local", "2", "--gpus", "1", "c.yaml"], "--gpus: expected --ray beside it"),
        (["--local", "2", "no.yaml"], "no.yaml"),
        (["--local", "2"], "expected a config file"),
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


TOKEN = """
import os
print(os.environ["SEBULBA_JOIN_TOKEN"])
"""


def test_the_processes_of_a_run_share_a_token_and_those_of_two_runs_do_not(fake, tmp_path, capsys):
    fake("")
    (tmp_path / "sebulba" / "train.py").write_text(TOKEN)
    tokens = []
    for _ in range(2):
        assert run_together([], num_processes=2, num_devices=None) == 0
        (token,) = {line.split()[1] for line in capsys.readouterr().err.splitlines()}
        tokens.append(token)
    assert len(tokens[0]) == 32 and tokens[0] != tokens[1]
