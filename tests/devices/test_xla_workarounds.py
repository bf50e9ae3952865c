"""Workarounds for XLA on a CPU."""

import sys

import chex
import jax
import jax.numpy as jnp
import pytest

from sebulba.devices.xla_workarounds import OneAtATime
from tests.subprocesses import run_python

PROGRAM = """
import resource, sys
import numpy as np
from sebulba.devices.xla_workarounds import keep_freed_memory

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


@jax.jit
def order(counter, tree):
    in_order = OneAtATime(counter)
    tree = in_order.map(lambda leaf, counter: leaf, tree)
    return in_order.follow(tree), in_order.counter


def test_ordering_changes_no_value():
    tree = {
        "floats": jnp.array([-jnp.nan, -jnp.inf, -0.0]),
        "empty": jnp.ones((3, 0)),
        "key": jax.random.split(jax.random.key(0), 3),
        "flags": jnp.array([True, False]),
    }
    chex.assert_trees_all_equal(order(jnp.int32(7), tree), (tree, jnp.int32(7)))


@pytest.mark.parametrize("platform", ["cpu", "cuda", "tpu"])
def test_ordering_computes_on_a_cpu_only(platform):
    traced = order.trace(jnp.int32(7), {"a": jnp.ones(3), "b": jnp.zeros(2)})
    program = traced.lower(lowering_platforms=(platform,)).as_text()
    assert ("stablehlo.add" in program) == ("stablehlo.select" in program) == (platform == "cpu")
