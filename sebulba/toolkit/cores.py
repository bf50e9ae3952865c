"""Recurrent cores over time: one of the table `CORES`, or the user's, `agent.core: module:Name`.

A core zeroes its state where an episode begins. Time is one axis of its inputs, so that acting
(`T = 1`) and learning are the same code. A core is a flax module with the field `size` and the
methods of `sebulba.toolkit.lstm.LSTMCore`. What it returns is checked wherever it is traced, so a
wrong one ends a run at its start.

To add one, write its file and add a row to `CORES` in `sebulba.references`;
`tests/toolkit/test_core_conformance.py` finds it there.
"""

import dataclasses
import inspect
import typing
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Protocol

import flax.linen as nn
import jax
import jax.numpy as jnp

from sebulba.errors import ConfigError, calling, did_you_mean
from sebulba.pytree import describe_inline
from sebulba.ranges import Range
from sebulba.references import CORES, Core, load
from sebulba.types import PyTree


class RecurrentCore(Protocol):
    """A flax module that remembers: made with a `size` and the `name` of its parameters."""

    def __init__(self, *, size: int, name: str | None = None, parent: Any = None): ...

    def __call__(
        self, inputs: jax.Array, is_first: jax.Array, state: PyTree
    ) -> tuple[jax.Array, PyTree]:
        """Unroll over time, from the state before row 0.

        Args:
            inputs: `[T, B, F]`.
            is_first: `[T, B]` bool, rows before which the state is reset.
            state: leaves `[B, ...]`.

        Returns:
            `[T, B, F']`, and the state after row `T - 1`.
        """
        ...

    def initial_state(self, batch_size: int) -> PyTree:
        """Return the state of `batch_size` environments whose episodes begin."""
        ...


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


@dataclasses.dataclass(frozen=True)
class CoreSettings:
    """Which recurrent core a network has: `agent.core`, `lstm_size` and `core_options`."""

    core: Core
    size: int
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def make(self, **of_module: Any) -> RecurrentCore:
        """Return the core; `of_module` are flax's fields `name` and `parent`."""
        return core_class(self.core)(size=self.size, **self.options, **of_module)


def core_settings(core: Core, size: int | None, options: Mapping[str, Any]) -> CoreSettings | None:
    """Return the checked settings of the config's core; None if it has no size.

    Raises:
        ConfigError: it has options, or is not the default, but no size; it is no core
            (`core_class`); or it has no such option, or another type or range of it.
    """
    if size is None:
        if options or core != "lstm":
            what = f"core: {core}" if core != "lstm" else "core_options: a core"
            raise ConfigError(f"agent.{what} needs a size, got null. Set agent.lstm_size")
        return None
    declared = _options_of(core_class(core))
    checked = {}
    for name, value in options.items():
        if name not in declared:
            known = did_you_mean(name, declared) or f"; {core} has no options"
            raise ConfigError(f"agent.core_options.{name}: {core} has no such option{known}")
        checked[name] = _option(f"agent.core_options.{name}", value, declared[name])
    settings = CoreSettings(core, size, checked)
    # The core itself checks what depends on several options.
    with calling(f"agent.core: {core}", given=f"size {size} and {checked}"):
        settings.make(parent=None)
    return settings


def _options_of(core: type[RecurrentCore]) -> dict[str, Any]:
    """Return the declared type of each field that is an option."""
    fields = dataclasses.fields(core)  # type: ignore[arg-type]
    others = ("size", "name", "parent")
    return {each.name: each.type for each in fields if each.init and each.name not in others}


def _option(key: str, value: Any, declared: Any) -> Any:
    """Return the value of an option whose type is a number with a range, or choices.

    A core of the user's may declare other types, and gets their values as they are.
    """
    limits = Range()
    if typing.get_origin(declared) is Annotated:
        declared, limits, *_ = typing.get_args(declared)
    choices = typing.get_args(declared) if typing.get_origin(declared) is Literal else ()
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if choices:
        is_right, expected = value in choices, " | ".join(map(str, choices))
    elif declared in (int, float):
        is_right = is_number and value == declared(value) and value in limits
        expected = f"{declared.__name__} {limits}".strip()
    else:
        return value
    if not is_right:
        raise ConfigError(f"{key}: expected {expected}, got {value!r}")
    return declared(value) if declared in (int, float) else value


def core_class(core: Core) -> type[RecurrentCore]:
    """Return the recurrent core that `agent.core` names.

    Raises:
        ConfigError: the user's module has no such core, or it lacks the field or a method.
    """
    own = load(CORES.get(core, core), key="agent.core")
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
    settings: CoreSettings,
    inputs: jax.Array,
    is_first: jax.Array,
    state: PyTree,
    *,
    name: str | None = None,
) -> tuple[jax.Array, PyTree]:
    """Unroll the core that `agent.core` names, inside of a compact flax module.

    Args:
        settings: the config's.
        inputs: `[T, B, F]`.
        is_first: `[T, B]` bool.
        state: before row 0.
        name: the name of the core's parameters.

    Returns:
        `[T, B, F']`, and the state after row `T - 1`.

    Raises:
        ConfigError: the user's core raises, or returns other shapes.
    """
    core = settings.core
    given = describe_inline({"inputs": inputs, "is_first": is_first, "state": state})
    with calling(f"agent.core: {core}", given=given):
        returned = settings.make(name=name)(inputs, is_first, state)
    if not (isinstance(returned, tuple) and len(returned) == 2):
        raise ConfigError(
            f"agent.core: expected {core} to return a pair, outputs and state, got"
            f" {type(returned).__name__}: {describe_inline(returned)}"
        )
    outputs, after = returned
    _expect(core, "outputs [T, B, F]", outputs, _is_sequence(outputs, is_first), given)
    _expect(core, "a state like the one before it", after, _is_like(after, state), given)
    return outputs, after


def initial_core_state(settings: CoreSettings, batch_size: int) -> PyTree:
    """Return the zero state of `batch_size` environments of the core that `agent.core` names.

    Raises:
        ConfigError: the user's core raises, or a leaf is not `[batch_size, ...]`.
    """
    core = settings.core
    with calling(f"agent.core: {core}.initial_state", given=f"batch_size {batch_size}"):
        state = settings.make(parent=None).initial_state(batch_size)
    is_batch = all(jnp.shape(leaf)[:1] == (batch_size,) for leaf in jax.tree.leaves(state))
    expected = f"initial_state({batch_size}) with leaves [{batch_size}, ...]"
    _expect(core, expected, state, is_batch, f"batch_size {batch_size}")
    return state


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
