"""Contexts of MLIR, each for many programs that a thread lowers.

JAX makes one for each program, which takes as long as it takes to lower a small program, and keeps
it in memory with the program. Programs in one context are the same programs: a context only keeps
their types and attributes, each once.
"""

import threading

from jax._src.interpreters import mlir

make_context = getattr(mlir, "make_ir_context", None)  # Not every JAX may have it.
# What programs leave in a context stays until the last of them is gone.
NUM_PROGRAMS = 200


class _OfThread(threading.local):
    context = None
    num_programs = 0


def share():
    """Lower up to `NUM_PROGRAMS` of a thread's programs in each context from now on."""
    if make_context is None:
        return
    of_thread = _OfThread()

    def context_with_space():
        if of_thread.num_programs % NUM_PROGRAMS == 0:
            of_thread.context = make_context()
        of_thread.num_programs += 1
        return of_thread.context

    mlir.make_ir_context = context_with_space
