"""Freed memory, in a process of its own: it cannot be undone."""

import sys

import pytest

from tests.subprocesses import run_python

PROGRAM = """
import resource, sys
import numpy as np
from sebulba.devices.xla_cpu import keep_freed_memory

if sys.argv[1] == "kept":
    assert keep_freed_memory()

def page_faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.ones(1 << 24, np.uint8)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

page_faults()
print(page_faults())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's")
def test_kept_blocks_are_not_cleared_again():
    given_back, kept = (
        int(run_python("-c", PROGRAM, setting).stdout) for setting in ("given-back", "kept")
    )
    assert kept < given_back / 10
