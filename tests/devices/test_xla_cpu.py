"""Workarounds for XLA on a CPU."""

import sys

import jax
import jax.numpy as jnp
import jaxlib.version
import numpy as np
import pytest

from sebulba.devices.xla_cpu import acting_options
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


@pytest.mark.parametrize("version", [(0, 9, 2), (0, 12, 0)])
def test_a_compiler_that_may_not_know_the_options_gets_none(monkeypatch, version):
    (device,) = jax.local_devices()[:1]
    options = acting_options(device)
    assert options is not None
    np.testing.assert_array_equal(jax.jit(jnp.cos, compiler_options=options)(0.0), 1.0)
    monkeypatch.setattr(jaxlib.version, "__version_info__", version)
    assert acting_options(device) is None
