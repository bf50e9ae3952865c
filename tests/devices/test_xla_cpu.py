"""Workarounds for XLA on a CPU."""

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


# In processes of their own: the setting cannot be undone.
@pytest.mark.skipif(sys.platform != "linux", reason="a setting of glibc")
def test_kept_memory_is_reused_without_page_faults():
    given_back, kept = (
        int(run_python("-c", PROGRAM, setting).stdout) for setting in ("given-back", "kept")
    )
    assert kept < given_back / 10
