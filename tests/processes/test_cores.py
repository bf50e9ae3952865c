"""Cores of the processes of one machine."""

import os

import pytest

from sebulba.processes.cores import cores_of_process


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
