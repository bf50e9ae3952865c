"""Cores of the processes of one machine."""

import contextlib
import os

import pytest

from sebulba.processes.cores import cores_of_process
from tests.subprocesses import started


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


# Binds itself to a core when it is told to, and stays.
BINDING = """
import os, sys
from sebulba.processes.cores import take_least_used_cores
print("ready", flush=True)
processes = sys.stdin.readline().split()
os.listdir = lambda path: processes
take_least_used_cores(1)
print(*os.sched_getaffinity(0), flush=True)
sys.stdin.readline()
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="cores cannot be chosen")
def test_processes_that_start_at_the_same_moment_take_different_cores():
    num_cores = min(len(os.sched_getaffinity(0)), 4)
    if num_cores == 1:
        pytest.skip("one core")
    for _ in range(3):
        with contextlib.ExitStack() as stack:
            processes = [
                stack.enter_context(started("-c", BINDING, stdin=-1, stdout=-1))
                for _ in range(num_cores)
            ]
            for process in processes:
                assert process.stdout.readline() == "ready\n"
            pids = [process.pid for process in processes]  # and not others of the machine
            for process in processes:
                print(*pids, file=process.stdin, flush=True)
            taken = [int(process.stdout.readline()) for process in processes]
        assert len(set(taken)) == num_cores
