"""Methods of agents as programs, compiled once for all tests that have the same agent."""

import functools

import jax


@functools.cache
def jitted(method):
    """Return the method as one program."""
    is_act = getattr(method, "__name__", "") == "act"
    return jax.jit(method, static_argnames="greedy" if is_act else None)


@functools.cache
def jitted_gradient(loss):
    """Return a program of the loss with auxiliary outputs and of its gradient."""
    return jax.jit(jax.value_and_grad(loss, has_aux=True))
