"""A network, a loss and values of the user's in DDQN, with errors that name what is wrong.

JAX would clamp the indices of missing actions, and broadcast losses of another shape.
"""

from collections.abc import Callable

import flax.linen as nn
import jax

from sebulba.errors import ConfigError, calling
from sebulba.pytree import describe_inline
from sebulba.toolkit.noisy_dense import STREAM
from sebulba.toolkit.replay import Transitions
from sebulba.types import PyTree

Loss = Callable[[jax.Array, jax.Array, Transitions], tuple[jax.Array, jax.Array]]
"""`loss(q_tm1, q_t, batch)` returns losses `[n]` and TD errors `[n]`, which are priorities.

`q_tm1` `[n, ...]` are the online network's outputs for the selected actions. `q_t` `[n, ...]` are
the target network's outputs for the next observations and the greedy actions there: the online
network's with `double`, or its own.
"""
Values = Callable[[jax.Array], jax.Array]
"""From outputs `[n, A, ...]` or `[n, ...]` to action values `[n, A]` or `[n]`."""


Outputs = Callable[[PyTree, PyTree, jax.Array | None], jax.Array]
"""From parameters, observations `[n, ...]` and the key of noisy layers to outputs `[n, A, ...]`.

Without a key, noisy layers compute without noise.
"""


def checked_network(network: nn.Module, num_actions: int) -> Outputs:
    """Return the network's outputs; ConfigError is raised unless they are `[n, A, ...]`."""

    def apply(params: PyTree, observation: PyTree, key: jax.Array | None) -> jax.Array:
        outputs = network.apply(params, observation, rngs=None if key is None else {STREAM: key})
        n = jax.tree.leaves(observation)[0].shape[0]
        if getattr(outputs, "shape", ())[:2] != (n, num_actions):
            raise ConfigError(
                f"DDQN(network=...): expected {type(network).__name__} to return an array"
                f" [{n}, {num_actions}, ...], for {n} observations and {num_actions} actions, got"
                f" {describe_inline(outputs)}"
            )
        return outputs

    return apply


def checked_values(values: Values) -> Values:
    """Return `values`, but ConfigError is raised unless they have the outputs' first axes."""

    def check(outputs: jax.Array) -> jax.Array:
        given = f"outputs {describe_inline(outputs)}"
        with calling("DDQN(values=...)", given=given):
            returned = values(outputs)
        shape = getattr(returned, "shape", None)
        if shape not in (outputs.shape[:1], outputs.shape[:2]):
            raise ConfigError(
                f"DDQN(values=...): expected action values {list(outputs.shape[:2])} of outputs"
                f" [n, A, ...], or {list(outputs.shape[:1])} of outputs [n, ...], got"
                f" {describe_inline(returned)}; it was called with {given}"
            )
        return returned

    return check


def checked_loss(loss: Loss) -> Loss:
    """Return `loss`, but ConfigError is raised unless it returns two arrays `[n]`."""

    def check(q_tm1: jax.Array, q_t: jax.Array, batch: Transitions) -> tuple[jax.Array, jax.Array]:
        given = f"q_tm1 {describe_inline(q_tm1)} and q_t {describe_inline(q_t)}"
        with calling("DDQN(loss=...)", given=given):
            returned = loss(q_tm1, q_t, batch)
        n = len(q_tm1)
        is_pair = isinstance(returned, tuple) and len(returned) == 2
        if not (is_pair and all(getattr(each, "shape", None) == (n,) for each in returned)):
            raise ConfigError(
                f"DDQN(loss=...): expected a pair of arrays [{n}], losses and TD errors, got"
                f" {describe_inline(returned)}; it was called with {given}"
            )
        return returned

    return check
