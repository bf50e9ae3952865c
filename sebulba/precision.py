"""Agents in 32 bits, also where environments compute in double precision.

With `JAX_ENABLE_X64`, JAX makes 64-bit numbers of what names no type, such as initial parameters
and random numbers. So an agent's methods are traced with that option off: its networks, states and
actions are bitwise those of a run without it.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from sebulba.agent import Agent

_MARK = "computes_in_32_bits"


def in_32_bits(agent: Any) -> Any:
    """Return the agent; if JAX has 64-bit types, its methods compute without them.

    Raises:
        TypeError: JAX has 64-bit types, and no method of the agent can be replaced.
    """
    if jnp.result_type(float) == jnp.float32:
        return agent
    for name, of_protocol in inspect.getmembers(Agent, inspect.isfunction):
        method = getattr(agent, name, None)
        # The empty methods of the protocol stay, for whoever asks whether an agent has its own.
        if callable(method) and getattr(method, "__func__", None) is not of_protocol:
            if hasattr(method, _MARK):  # The same object is the agent of several runs.
                continue
            try:
                object.__setattr__(agent, name, _in_32_bits(method))
            except AttributeError:
                raise TypeError(
                    f"{type(agent).__name__}.{name} cannot be replaced by one that computes in 32"
                    " bits. Remove __slots__, or unset JAX_ENABLE_X64"
                ) from None
    return agent


def _in_32_bits(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        with jax.enable_x64(False):
            return method(*args, **kwargs)

    setattr(call, _MARK, True)
    return call
