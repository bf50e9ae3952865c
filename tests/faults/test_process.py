"""What happens to the process: signals, closed streams, threads that libraries leave behind."""

import json
import os
import signal
import subprocess
import sys
import types

import pytest

import sebulba.process
from sebulba.errors import ConfigError
from sebulba.ring.clocks import COMPILE, ENVIRONMENT
from sebulba.ring.run_end import RunEnd
from sebulba.run import training
from tests.disturbances import before
from tests.faults.runs import hang_at, last_line, make_config, summary_of
from tests.subprocesses import DEADLINE_S, ROOT, environment, run_python
from tests.toys import ToyAgent

pytestmark = pytest.mark.shares_programs


class LateConfigErrorAgent(ToyAgent):
    """Finds in the middle of a run that its configuration is wrong."""

    def num_updates_per_cycle(self, cycle):
        if cycle == 4:
            raise ConfigError("agent.depth: expected at most 5, got 6")
        return 1


class EscapingAgent(ToyAgent):
    """Raises an error whose text would take hold of a terminal."""

    def num_updates_per_cycle(self, cycle):
        raise ArithmeticError("red \x1b[31m\nand a second line")


def test_a_config_error_in_mid_run_is_a_failure_that_keeps_everything(tmp_path, capsys):
    agent = f"{__name__}:LateConfigErrorAgent"
    config = make_config(tmp_path / "run", agent=agent, checkpoint={"interval_s": 0})
    assert training.train_to_exit_code(config) == 3
    assert "ConfigError: agent.depth: expected at most 5" in last_line(capsys)
    assert summary_of(tmp_path / "run")["status"] == "failed"
    assert any((tmp_path / "run/checkpoints").iterdir())


def test_a_directory_that_was_there_before_a_wrong_config_stays(tmp_path, capsys):
    (tmp_path / "mine").mkdir()
    config = make_config(tmp_path / "mine", env={"id": "Cach-v0"})
    assert training.train_to_exit_code(config) == 2
    assert (tmp_path / "mine").is_dir()


def test_an_error_s_text_reaches_the_terminal_escaped_and_in_one_line(tmp_path, capsys):
    agent = f"{__name__}:EscapingAgent"
    assert training.train_to_exit_code(make_config(tmp_path / "a\x1b[2Jb", agent=agent)) == 3
    error = capsys.readouterr().err
    assert "\x1b" not in error
    assert "ArithmeticError: red \\x1b[31m" in error.splitlines()[-1]


def test_a_run_directory_is_one_place_whatever_the_environment_does(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setenv("RUNS", "mine")
    before("update", lambda _: os.chdir(tmp_path / "elsewhere"), setattr=monkeypatch.setattr)
    assert training.train_to_exit_code(make_config("$RUNS/run")) == 0
    assert summary_of(tmp_path / "mine/run")["status"] == "done"
    assert not any((tmp_path / "elsewhere").iterdir())


def test_a_run_directory_may_begin_with_the_home_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert training.train_to_exit_code(make_config("~/run")) == 0
    assert summary_of(tmp_path / "run")["status"] == "done"


def test_a_terminal_that_closes_stops_a_run_as_sigterm_does_however_often_it_says_so():
    previous = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # The tests may run under nohup.
    try:
        with RunEnd().listening() as run_end:
            for _ in range(3):
                os.kill(os.getpid(), signal.SIGHUP)
            assert run_end.signal == signal.SIGHUP
    finally:
        signal.signal(signal.SIGHUP, previous)


def test_nohup_keeps_a_run_deaf_to_its_terminal():
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with RunEnd().listening() as run_end:
            os.kill(os.getpid(), signal.SIGHUP)
            assert run_end.signal is None
    finally:
        signal.signal(signal.SIGHUP, previous)


@pytest.mark.parametrize(
    ("imported", "number"), [("jaxlib", signal.SIGINT), ("yaml", signal.SIGTERM)]
)
def test_a_signal_while_the_command_is_imported_ends_it_with_one_line(imported, number, tmp_path):
    """`sebulba/__init__.py` imports the first of these, and the command's own file the second."""
    (tmp_path / imported).mkdir()
    script = f"import os; os.kill(os.getpid(), {int(number)}); raise AssertionError"
    (tmp_path / imported / "__init__.py").write_text(script)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    process = run_python("-m", "sebulba.train", variables=environment(PYTHONPATH=path))
    assert process.stderr == "sebulba: interrupted before the start\n"
    assert process.returncode == 128 + number


@pytest.mark.parametrize(
    ("argv", "orig_argv", "is_command"),
    [
        (["-m", "x"], ["python", "-u", "-m", "sebulba.train", "x"], True),
        (["-m"], ["python", "-msebulba"], True),
        (["/usr/bin/sebulba", "train"], ["python", "/usr/bin/sebulba", "train"], True),
        (["/usr/bin/sebulba", "train"], ["python", "-c", "spawn_main()"], False),
        (["-m"], ["python", "-m", "mine.train"], False),
        (["mine.py", "sebulba.train"], ["python", "mine.py", "sebulba.train"], False),
        ([], ["python"], False),
    ],
)
def test_only_commands_change_the_signal_handlers_when_they_import_the_package(
    argv, orig_argv, is_command, monkeypatch
):
    monkeypatch.setattr(sys, "argv", argv)
    monkeypatch.setattr(sys, "orig_argv", orig_argv)
    assert sebulba.process.is_command() == is_command


@pytest.mark.parametrize(
    ("call", "saved"),
    [
        (1, "Nothing was learned yet."),
        (3, "Nothing was saved yet: 40 env steps are lost."),
    ],
)
def test_a_signal_during_a_compilation_says_so_and_what_was_learned(
    call,
    saved,
    tmp_path,
    monkeypatch,
    blocked,
    capsys,
):
    release, ends = blocked
    hangs = hang_at(monkeypatch, "update", call, release, announce=COMPILE)

    def signal_once_it_compiles(self):
        if hangs.is_set():
            self.signal = signal.SIGTERM
        return self.signal is not None

    monkeypatch.setattr(RunEnd, "closes_at_once", property(signal_once_it_compiles))
    assert training.train_to_exit_code(make_config(tmp_path)) == 143
    assert ends == [143]
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"sebulba: stopped by SIGTERM while compiling. {saved}"
    )
    (summary,) = tmp_path.rglob("summary.json")
    ended = json.loads(summary.read_text())
    assert ended["status"] == "interrupted"
    assert ended["reason"] == "stopped by SIGTERM while compiling"


CONFIG = """
env: {suite: jax, id: Catch-v0}
agent: {name: 'tests.toys:ToyAgent'}
devices: {actor: [0], learner: [0]}
actor: {num_envs: 4, trajectory_length: 5}
run: {total_env_steps: 100}
"""


def test_a_run_without_stderr_is_a_run(tmp_path):
    (tmp_path / "config.yaml").write_text(CONFIG)
    process = subprocess.run(
        [
            *("bash", "-c", 'exec "$@" 2>&-', "-"),
            *(sys.executable, "-m", "sebulba.train", tmp_path / "config.yaml"),
            *("--run-dir", tmp_path / "run"),
        ],
        cwd=ROOT,
        env=environment(),
        timeout=DEADLINE_S,
    )
    assert process.returncode == 0
    assert summary_of(tmp_path / "run")["status"] == "done"


def test_a_process_whose_output_nobody_reads_still_ends_with_its_code():
    script = (
        "import os, sys, threading, time; from sebulba.process import leave;"
        "threading.Thread(target=time.sleep, args=(3600,)).start();"
        "reader, writer = os.pipe(); os.close(reader);"
        # Buffered, whatever PYTHONUNBUFFERED says: it is the flush at the end that fails.
        "sys.stdout = os.fdopen(writer, 'w'); sys.stdout.write('x'); leave(3)"
    )
    assert run_python("-c", script).returncode == 3


def test_stacks_that_cannot_be_written_do_not_hide_the_error(
    tmp_path, monkeypatch, blocked, capsys
):
    release, _ = blocked
    monkeypatch.setattr("faulthandler.dump_traceback", raise_broken_pipe)
    monkeypatch.setattr("sebulba.run.watchdog._GRACE_S", 0.0)
    hang_at(monkeypatch, "act", 1, release, ENVIRONMENT)
    assert training.train_to_exit_code(make_config(tmp_path, actor={"env_timeout_s": 1.0})) == 5
    assert "WatchdogError" in last_line(capsys)


def raise_broken_pipe(*args, **kwargs):
    raise BrokenPipeError


def test_a_library_s_thread_does_not_keep_the_process_alive():
    script = (
        "import threading, time; from sebulba.process import leave;"
        "threading.Thread(target=time.sleep, args=(3600,)).start(); leave(3)"
    )
    assert run_python("-c", script).returncode == 3


def test_a_signal_while_the_interpreter_ends_does_not_change_the_exit_code():
    script = (
        "import os, signal; from sebulba.process import leave, run_command\n"
        "class Late:\n"
        "    def __del__(self, kill=os.kill, pid=os.getpid()): kill(pid, 15)\n"
        "late = Late(); run_command(lambda: leave(3))"
    )
    assert run_python("-c", script).returncode == 3


def test_a_signal_while_the_cause_is_printed_does_not_cut_it_off(tmp_path, monkeypatch):
    printed = []
    end = RunEnd()
    end.fail(RuntimeError("the cause"))
    end.finalize()

    def interrupted_report(finished):
        signal.raise_signal(signal.SIGTERM)
        printed.append(finished)

    finished = types.SimpleNamespace(end=end)
    monkeypatch.setattr(training, "train", lambda config, **options: finished)
    monkeypatch.setattr(training, "report", interrupted_report)
    assert training.train_to_exit_code(make_config(tmp_path)) == 3
    assert printed == [finished]


def test_a_signal_while_a_bad_start_is_reported_does_not_cut_the_cause_off(tmp_path, monkeypatch):
    cause, printed = RuntimeError("the cause"), []

    def fail(config, **options):
        raise cause

    def interrupted_report(error, path, *, is_resume):
        signal.raise_signal(signal.SIGTERM)
        printed.append(error)
        return 3

    monkeypatch.setattr(training, "train", fail)
    monkeypatch.setattr(training, "report_before_start", interrupted_report)
    assert training.train_to_exit_code(make_config(tmp_path)) == 3
    assert printed == [cause]
