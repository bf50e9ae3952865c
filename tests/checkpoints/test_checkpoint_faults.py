"""Checkpoints in processes that are killed, or that fill the disk."""

import os
import pathlib
import random
import subprocess
import sys
import time

import numpy as np
import pytest

from sebulba.checkpoints.checkpointer import Checkpointer
from sebulba.checkpoints.restore import restore, steps_in
from tests.trees import assert_trees_equal

ROOT = pathlib.Path(__file__).parents[2]


def run_script(script, *args):
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, args)],
        cwd=ROOT,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


FULL_DISK = """
import resource, signal, sys, time
import numpy as np
from sebulba.checkpoints.checkpointer import Checkpointer, SaveError

def state(seed):
    return {name: np.random.default_rng(seed).normal(size=20_000) for name in "abcd"}

checkpointer = Checkpointer(sys.argv[1], keep=1)
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
checkpointer.close()
checkpointer.check_for_errors()
"""


@pytest.mark.parametrize("then", ["recovers", "ends"])
def test_full_disk_is_told_and_costs_no_older_checkpoint(tmp_path, then):
    process = run_script(FULL_DISK, tmp_path, then)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    lines = out.splitlines()
    assert len(lines) == 2
    for step, line in zip((2, 3), lines, strict=True):
        assert line.startswith(f"the checkpoint of step {step} was not saved in {tmp_path}")
        assert "File too large" in line
        assert line.endswith("['1']")
    assert err == ""
    step = {"recovers": 4, "ends": 1}[then]
    expected = {name: np.random.default_rng(step).normal(size=20_000) for name in "abcd"}
    restored, _ = restore(tmp_path, "latest", expected)
    assert_trees_equal(restored, expected)
    assert steps_in(tmp_path) == [step]


KILLED = """
import itertools, sys
import numpy as np
from sebulba.checkpoints.checkpointer import Checkpointer

checkpointer = Checkpointer(sys.argv[1], keep=2)
for step in itertools.count(int(sys.argv[2])):
    state = {name: np.random.default_rng(step).normal(size=50_000) for name in "abcd"}
    checkpointer.save(step, state, {"step": step}, score=-step)
    checkpointer.wait()
    print(step, flush=True)
"""


def kill_while_saving(directory, num_kills):
    delays = random.Random(0)
    newest = -1
    num_torn = 0
    for _ in range(num_kills):
        process = run_script(KILLED, directory, newest + 1)
        assert process.stdout is not None
        printed = int(process.stdout.readline())
        time.sleep(delays.uniform(0, 0.3))
        process.kill()
        out, _ = process.communicate(timeout=30)
        printed = int(out.splitlines()[-1]) if out.strip() else printed
        num_torn += len(list(directory.glob("*tmp*")))
        Checkpointer(directory, keep=2).close()
        assert list(directory.glob("*tmp*")) == []
        newest = steps_in(directory)[-1]
        assert newest in (printed, printed + 1)
        expected = {name: np.random.default_rng(newest).normal(size=50_000) for name in "abcd"}
        restored, meta = restore(directory, "latest", expected)
        assert_trees_equal(restored, expected)
        assert meta == {"step": newest}
    assert num_torn > 0, "no kill came during a save"


def test_kill_while_saving_leaves_the_newest_whole_checkpoint(tmp_path):
    kill_while_saving(tmp_path, 3)


@pytest.mark.slow
def test_twenty_kills_while_saving_leave_the_newest_whole_checkpoint(tmp_path):
    kill_while_saving(tmp_path, 20)
