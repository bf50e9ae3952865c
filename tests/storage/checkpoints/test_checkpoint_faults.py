"""Checkpoints in processes that are killed, or that fill the disk."""

import os
import random
import signal
import subprocess
import time

import chex
import numpy as np
import pytest

from sebulba.storage.checkpoints.checkpointer import Checkpointer
from sebulba.storage.checkpoints.restore import restore, steps_in
from tests.subprocesses import DEADLINE_S, run_python, started

FULL_DISK = """
import resource, signal, sys, time
import numpy as np
from sebulba.process import start_daemon
from sebulba.storage.checkpoints.checkpointer import Checkpointer, SaveError

def state(seed):
    return {name: np.random.default_rng(seed).normal(size=20_000) for name in "abcd"}

checkpointer = Checkpointer(sys.argv[1], keep=1, start_thread=start_daemon)
checkpointer.save(1, state(1), {}, score=None)
checkpointer.wait()
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, resource.RLIM_INFINITY))
for step in (2, 3):
    checkpointer.save(step, state(step), {}, score=None)
    while checkpointer.is_saving():
        time.sleep(0.01)
    try:
        checkpointer.check_for_errors()
    except SaveError as error:
        print(error, [path.name for path in checkpointer.directory.iterdir()])
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
if sys.argv[2] == "recovers":
    checkpointer.save(4, state(4), {}, score=None)
checkpointer.wait()
checkpointer.check_for_errors()
"""


@pytest.mark.parametrize("then", ["recovers", "ends"])
def test_full_disk_is_reported_and_keeps_older_checkpoints(tmp_path, then):
    process = run_python("-c", FULL_DISK, tmp_path, then)
    assert process.returncode == 0, process.stderr
    lines = process.stdout.splitlines()
    assert len(lines) == 2
    for step, line in zip((2, 3), lines, strict=True):
        assert line.startswith(f"the checkpoint of step {step} was not saved in {tmp_path}")
        assert "File too large" in line
        assert line.endswith("['1']")
    assert process.stderr == ""
    step = {"recovers": 4, "ends": 1}[then]
    expected = {name: np.random.default_rng(step).normal(size=20_000) for name in "abcd"}
    restored, _ = restore(tmp_path, "latest", expected)
    chex.assert_trees_all_equal(restored, expected)
    assert steps_in(tmp_path) == [step]


KILLED = """
import itertools, sys
import numpy as np
from sebulba.process import start_daemon
from sebulba.storage.checkpoints.checkpointer import Checkpointer

checkpointer = Checkpointer(sys.argv[1], keep=2, start_thread=start_daemon)
for step in itertools.count(int(sys.argv[2])):
    state = {name: np.random.default_rng(step).normal(size=50_000) for name in "abcd"}
    checkpointer.save(step, state, {"step": step}, score=-step)
    checkpointer.wait()
    print(step, flush=True)
"""


def started_saving(directory, step):
    return started("-c", KILLED, directory, step, stdout=subprocess.PIPE)


def test_kills_while_saving_leave_the_newest_complete_checkpoint(tmp_path):
    newest = -1
    for _ in range(3):
        with started_saving(tmp_path, newest + 1) as process:
            process.stdout.readline()  # One is saved, and the next is in progress.
            kill_in_a_save(process, tmp_path)
            newest = check_what_a_kill_left(process, tmp_path)


@pytest.mark.slow
def test_kills_at_twenty_random_moments_leave_the_newest_complete_checkpoint(tmp_path):
    delays = random.Random(0)
    newest = -1
    for _ in range(20):
        with started_saving(tmp_path, newest + 1) as process:
            process.stdout.readline()
            time.sleep(delays.uniform(0, 0.3))
            process.kill()
            newest = check_what_a_kill_left(process, tmp_path)


def kill_in_a_save(process, directory):
    """Kill the process while it writes a checkpoint."""
    while True:
        process.send_signal(signal.SIGSTOP)
        stop = os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        assert stop.si_code == os.CLD_STOPPED, "it ended by itself"
        if list(directory.glob("*tmp*")):
            process.kill()
            return
        process.send_signal(signal.SIGCONT)
        time.sleep(0.001)


def check_what_a_kill_left(process, directory):
    out, _ = process.communicate(timeout=DEADLINE_S)
    Checkpointer(directory, keep=2)
    assert list(directory.glob("*tmp*")) == []
    newest = steps_in(directory)[-1]
    if out:  # The last one it printed, or the next, which it had no time to print.
        printed = int(out.splitlines()[-1])
        assert newest in (printed, printed + 1)
    expected = {name: np.random.default_rng(newest).normal(size=50_000) for name in "abcd"}
    restored, meta = restore(directory, "latest", expected)
    chex.assert_trees_all_equal(restored, expected)
    assert meta == {"step": newest}
    return newest
