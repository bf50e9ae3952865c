"""The programs that a thread lowers share a context of MLIR, and are what they are without it."""

import threading

import jax
import jax.numpy as jnp
import pytest
from jax._src.interpreters import mlir

from tests import ir_contexts

pytestmark = pytest.mark.skipif(
    ir_contexts.make_context is None, reason="this JAX makes its contexts elsewhere"
)


def lowered(factor):
    return jax.jit(lambda x: jax.random.normal(jax.random.key(0), x.shape) * x * factor).lower(
        jnp.ones((3, 2))
    )


def context_of(program):
    return program.compiler_ir().context


def test_a_thread_lowers_in_one_context_and_another_thread_in_another():
    first, second, third = (context_of(lowered(factor)) for factor in (2.0, 3.0, 4.0))
    assert second is first or second is third  # A new one begins after many programs.
    others = []
    thread = threading.Thread(target=lambda: others.append(context_of(lowered(3.0))))
    thread.start()
    thread.join()
    assert others[0] not in (first, second, third)


@pytest.mark.parametrize("debug_info", [False, True])
def test_a_program_is_the_same_in_a_shared_context(monkeypatch, debug_info):
    shared = lowered(2.0).as_text(debug_info=debug_info)
    monkeypatch.setattr(mlir, "make_ir_context", ir_contexts.make_context)
    alone = lowered(2.0)
    assert context_of(alone) is not context_of(lowered(2.0))
    assert alone.as_text(debug_info=debug_info) == shared
