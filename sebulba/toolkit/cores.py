"""Recurrent cores over time: the LSTM, or the user's, `agent.core: module:Name`.

A core zeroes its state where an episode begins. Time is one axis of its inputs, so that acting
(`T = 1`) and learning are the same code. The user's core is a flax module with the field `size` and
the methods of `LSTMCore`. What it returns is checked wherever it is traced, so a wrong one ends a
run at its start.
"""

import inspect
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen.initializers import orthogonal

from sebulba.errors import ConfigError, calling
from sebulba.pytree import describe_inline, pytree_dataclass
from sebulba.references import Core, load
from sebulba.toolkit.dense import Dense
from sebulba.types import PyTree


@pytree_dataclass
class LSTMState:
    """The recurrent state of `B` environments."""

    hidden: jax.Array  # [B, size]
    cell: jax.Array  # [B, size]


class LSTMCore(nn.Module):
    """An LSTM over time, whose state is zeroed where an episode begins.

    The forget gate has a constant bias of 1 (Jozefowicz et al. 2015, "An Empirical Exploration of
    Recurrent Network Architectures"), which flax's cells lack.
    """

    size: int

    @nn.compact
    def __call__(
        self, inputs: jax.Array, is_first: jax.Array, state: LSTMState
    ) -> tuple[jax.Array, LSTMState]:
        """Unroll over time.

        Args:
            inputs: `[T, B, F]`.
            is_first: `[T, B]` bool, rows before which the state is zeroed.
            state: before row 0.

        Returns:
            `[T, B, size]`, and the state after row `T - 1`.
        """
        recurrent_kernel = self.param(
            "recurrent_kernel", _init_recurrent_kernel, (self.size, 4 * self.size)
        )

        def step(state: LSTMState, row: tuple[jax.Array, jax.Array]):
            from_input, is_first = row
            hidden, cell = (
                jnp.where(is_first[:, None], 0.0, leaf) for leaf in (state.hidden, state.cell)
            )
            gates = jnp.split(from_input + hidden @ recurrent_kernel, 4, axis=-1)
            admit, forget, emit = (
                nn.sigmoid(gates[0]),
                nn.sigmoid(gates[1] + 1),  # remembers by default, before any training
                nn.sigmoid(gates[2]),
            )
            cell = forget * cell + admit * nn.tanh(gates[3])
            hidden = emit * nn.tanh(cell)
            return LSTMState(hidden=hidden, cell=cell), hidden

        # The gates' input part does not depend on the state: one matrix product for all steps.
        from_inputs = Dense(4 * self.size)(inputs)
        state, outputs = jax.lax.scan(step, state, (from_inputs, is_first))
        return outputs, state

    def initial_state(self, batch_size: int) -> LSTMState:
        """Return the zero state of `batch_size` environments."""
        zeros = jnp.zeros((batch_size, self.size), jnp.float32)
        return LSTMState(hidden=zeros, cell=zeros)


def join_past(
    features: jax.Array,
    reward: jax.Array,
    last_action: jax.Array,
    is_first: jax.Array,
) -> jax.Array:
    """Return features, last reward and last action, concatenated: `[T, B, F + 1 + E]`.

    Args:
        features: `[T, B, F]`.
        reward: `[T, B]`.
        last_action: `[T, B, E]` float32, one-hot if discrete.
        is_first: `[T, B]` bool, where reward and last action are zeroed.
    """
    past = [reward[..., None], last_action]
    is_reset = is_first[..., None]
    return jnp.concatenate([features, *(jnp.where(is_reset, 0.0, x) for x in past)], axis=-1)


def check_core(core: Core, size: int | None) -> None:
    """Check that the config's core is one, and has a size.

    Raises:
        ConfigError: it has no size, or as `core_class`.
    """
    if size is not None:
        core_class(core)
    elif core != "lstm":
        raise ConfigError(f"agent.core: {core} needs a size, got null. Set agent.lstm_size")


def core_class(core: Core) -> type[LSTMCore]:
    """Return the recurrent core that `agent.core` names.

    Raises:
        ConfigError: the user's module has no such core, or it lacks the field or a method.
    """
    if core == "lstm":
        return LSTMCore
    own = load(core, key="agent.core")
    if not (isinstance(own, type) and issubclass(own, nn.Module)):
        raise ConfigError(
            f"agent.core: expected {core} to be a subclass of flax.linen.Module, got {own!r}"
        )
    has = {name for each in own.__mro__ for name in vars(each)}
    parts = {
        "field `size: int`": "size" in inspect.signature(own).parameters,
        "method `__call__(inputs, is_first, state)`": "__call__" in has,
        "method `initial_state(batch_size)`": "initial_state" in has,
    }
    if missing := [part for part, is_there in parts.items() if not is_there]:
        raise ConfigError(
            f"agent.core: {core} has no {' and no '.join(missing)}, which every recurrent core has:"
            " docs/tutorials/recurrence.md"
        )
    return own


def unroll_core(
    core: Core,
    size: int,
    inputs: jax.Array,
    is_first: jax.Array,
    state: PyTree,
    *,
    name: str | None = None,
) -> tuple[jax.Array, PyTree]:
    """Unroll the core that `agent.core` names, inside of a compact flax module.

    Args:
        core: the config's.
        size: the core's.
        inputs: `[T, B, F]`.
        is_first: `[T, B]` bool.
        state: before row 0.
        name: the name of the core's parameters.

    Returns:
        `[T, B, F']`, and the state after row `T - 1`.

    Raises:
        ConfigError: the user's core raises, or returns other shapes.
    """
    given = describe_inline({"inputs": inputs, "is_first": is_first, "state": state})
    with calling(f"agent.core: {core}", given=given):
        returned = core_class(core)(size=size, name=name)(inputs, is_first, state)
    if not (isinstance(returned, tuple) and len(returned) == 2):
        raise ConfigError(
            f"agent.core: expected {core} to return a pair, outputs and state, got"
            f" {type(returned).__name__}: {describe_inline(returned)}"
        )
    outputs, after = returned
    _expect(core, "outputs [T, B, F]", outputs, _is_sequence(outputs, is_first), given)
    _expect(core, "a state like the one before it", after, _is_like(after, state), given)
    return outputs, after


def initial_core_state(core: Core, size: int, batch_size: int) -> PyTree:
    """Return the zero state of `batch_size` environments of the core that `agent.core` names.

    Raises:
        ConfigError: the user's core raises, or a leaf is not `[batch_size, ...]`.
    """
    with calling(f"agent.core: {core}.initial_state", given=f"batch_size {batch_size}"):
        state = core_class(core)(size=size, parent=None).initial_state(batch_size)
    is_batch = all(jnp.shape(leaf)[:1] == (batch_size,) for leaf in jax.tree.leaves(state))
    expected = f"initial_state({batch_size}) with leaves [{batch_size}, ...]"
    _expect(core, expected, state, is_batch, f"batch_size {batch_size}")
    return state


def _init_recurrent_kernel(key: jax.Array, shape: tuple[int, int]) -> jax.Array:
    """Return four orthogonal matrices side by side, one per gate."""
    size = shape[0]
    gates = [orthogonal()(gate_key, (size, size)) for gate_key in jax.random.split(key, 4)]
    return jnp.concatenate(gates, axis=1)


def _expect(core: Core, expected: str, got: PyTree, is_right: bool, given: str) -> None:
    if not is_right:
        raise ConfigError(
            f"agent.core: expected {core} to return {expected}, got {describe_inline(got)}; it was"
            f" called with {given}"
        )


def _is_sequence(outputs: PyTree, is_first: jax.Array) -> bool:
    return (
        isinstance(outputs, jax.Array)
        and outputs.ndim == 3
        and outputs.shape[:2] == (is_first.shape)
    )


def _is_like(after: PyTree, before: PyTree) -> bool:
    structures: list[Any] = [jax.tree.structure(after), jax.tree.structure(before)]
    return structures[0] == structures[1] and all(
        (jnp.shape(x), jnp.result_type(x)) == (jnp.shape(y), jnp.result_type(y))
        for x, y in zip(jax.tree.leaves(after), jax.tree.leaves(before), strict=True)
    )
