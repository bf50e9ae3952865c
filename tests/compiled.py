"""Programs, each compiled once for all tests that call the same function or method of an object."""

import functools

import jax

jitted = functools.cache(jax.jit)
"""`jax.jit`, but the same program again for the same function and options."""


@functools.cache
def jitted_gradient(loss):
    """Return a program of the loss with auxiliary outputs and of its gradient."""
    return jax.jit(jax.value_and_grad(loss, has_aux=True))
