"""Processes that tests start."""

import os
import select
import subprocess
import sys

import pytest

from tests.subprocesses import DEADLINE_S, ROOT, started

# Its child is in a process group of its own, as the runs of several seeds are.
PARENT = """
import subprocess
child = subprocess.Popen(["sleep", "3600"], process_group=0)
print("started", flush=True)
child.wait()
"""


def test_a_process_and_what_it_started_end_when_the_test_fails():
    reading, writing = os.pipe()
    with os.fdopen(reading) as output:
        with (
            pytest.raises(ValueError, match="the test failed"),
            started("-c", PARENT, stdout=writing),
        ):
            os.close(writing)
            assert output.readline() == "started\n"
            raise ValueError("the test failed")
        # The output ends once nothing is left that could write to it.
        assert select.select([output], [], [], DEADLINE_S)[0]
        assert output.read() == ""


# It is killed while its process runs, as a pytest that has used up its memory is.
KILLED_TEST = """
import signal
from tests.subprocesses import started
with started("-c", "print('started', flush=True); import time; time.sleep(3600)") as process:
    signal.pause()
"""


def test_a_process_ends_when_the_test_that_started_it_is_killed():
    command, pipe = [sys.executable, "-c", KILLED_TEST], subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdout=pipe, text=True) as test:
        assert test.stdout.readline() == "started\n"
        test.kill()
        # The output ends once nothing is left that could write to it.
        assert select.select([test.stdout], [], [], DEADLINE_S)[0]
        assert test.stdout.read() == ""
