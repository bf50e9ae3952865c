"""Lines of XLA's tuner, which are dropped from stderr."""

import signal

import pytest

from tests.subprocesses import run_python

_PROGRAM = """
import os, sys
from sebulba.devices.tuner_lines import drop_tuner_lines
drop_tuner_lines()
prefix = b"E1126 00:00:00.000000 42 cuda_timer.cc:87] "
for _ in range(100):
    os.write(2, prefix + b"Delay kernel timed out: measured time has sub-optimal accuracy.\\n")
os.write(2, b"E1126 00:00:00.000000 42 other.cc:1] another error\\n")
print("of Python", file=sys.stderr)
os.write(2, b"F1126 00:00:00.000000 42 fatal.cc:1] Check failed: no newline")
"""


def test_only_lines_of_the_tuner_are_dropped_also_if_the_process_aborts():
    process = run_python("-c", f"{_PROGRAM}\nos.abort()")
    assert process.returncode == -signal.SIGABRT
    assert sorted(process.stderr.splitlines()) == [
        "E1126 00:00:00.000000 42 other.cc:1] another error",
        "F1126 00:00:00.000000 42 fatal.cc:1] Check failed: no newline",
        "of Python",
    ]


def test_lines_after_a_ctrl_c_are_not_lost():
    end = """
import signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
os.killpg(0, signal.SIGINT)
os.write(2, b"the last line\\n")
"""
    process = run_python("-c", _PROGRAM.split("prefix")[0] + end)
    assert (process.returncode, process.stderr) == (0, "the last line\n")


def test_a_process_whose_stderr_is_closed_runs_on():
    program = "import os; os.close(2)" + _PROGRAM.split("prefix")[0] + "print('runs')"
    assert run_python("-c", program).stdout == "runs\n"


_COMMAND = """
import sys
from sebulba.devices import tuner_lines, xla_flags
from sebulba.run import training
from sebulba.train import main

xla_flags.has_nvidia_gpu = lambda: {has_gpu}
tuner_lines.drop_tuner_lines = lambda: print("drop")
training.train_to_exit_code = lambda *_, **__: print("train") or 0
sys.argv[1:] = ["impala_bandit"]
main()
"""


@pytest.mark.parametrize(("has_gpu", "order"), [(True, ["drop", "train"]), (False, ["train"])])
def test_the_command_drops_them_where_a_gpu_is(has_gpu, order):
    process = run_python("-c", _COMMAND.format(has_gpu=has_gpu))
    assert (process.returncode, process.stdout.split()) == (0, order)
