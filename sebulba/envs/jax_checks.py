"""Check a JAX task and its wrappers, by tracing `reset` and `step`."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from sebulba.envs.spaces import narrowed
from sebulba.errors import ConfigError, calling
from sebulba.pytree import describe_inline
from sebulba.types import EnvironmentSpec, PyTree

_RESET = ("state", "observation")
_STEP = ("state", "observation", "reward", "terminated", "truncated")


def check_task(
    task: Any,
    spec: EnvironmentSpec,
    to_native: Callable[[Any], PyTree],
    *,
    players: tuple[int, ...],
) -> None:
    """Compare what a task's methods return with its declarations.

    Args:
        task: a `JaxTask`, with its wrappers.
        spec: as the task declares it.
        to_native: from agents' actions `[B, ...]` to the task's.
        players: `(P,)` of a task with an axis of players; (): without.

    Raises:
        ConfigError: a method raises, or returns another structure, shape or dtype.
    """
    name = describe_task(task)
    if not all(hasattr(leaf, "shape") for leaf in jax.tree.leaves(spec.observation)):
        raise ConfigError(
            f"env.id: {name}: expected observation to be a jax.ShapeDtypeStruct, or a tree of them,"
            f" got {spec.observation!r}; correct the task"
        )
    key = jax.eval_shape(lambda: jax.random.key(0))
    space, num_actions = spec.action_space, players or (1,)
    batch = jax.ShapeDtypeStruct((*num_actions, *space.shape), space.dtype)
    action = jax.eval_shape(
        lambda batch: jax.tree.map(lambda x: x if players else x[0], to_native(batch)), batch
    )
    state, first = _results(task, "reset", _RESET, key=key)
    after, observation, *rest = _results(task, "step", _STEP, state=state, action=action, key=key)

    def of_all(leaf: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((*players, *leaf.shape), leaf.dtype)

    flag = jax.ShapeDtypeStruct(players, np.bool_)
    scalars = [jax.ShapeDtypeStruct(players, np.float32), flag, flag]
    expected_observation = jax.tree.map(of_all, spec.observation)
    checked = [
        ("reset's observation", narrowed(first), expected_observation),
        ("step's observation", narrowed(observation), expected_observation),
        ("step's state", after, state),
        *zip([f"step's {each}" for each in _STEP[2:]], narrowed(rest), scalars, strict=True),
    ]
    if spec.action_mask is not None:
        mask = _trace(task, "action_mask", state=state)
        checked.append(("action_mask", mask, of_all(spec.action_mask)))
    for what, got, expected in checked:
        if _signature(got) != _signature(expected):
            raise ConfigError(
                f"env.id: {name}: expected {what} to be {describe_inline(expected)}, got"
                f" {describe_inline(got)}; correct the task"
            )


def describe_task(task: Any) -> str:
    """Return a task as Python would make it: `ScaledReward(Catch(rows=10, columns=5), scale=2)`."""
    if not dataclasses.is_dataclass(task):
        return type(task).__name__
    arguments = ", ".join(
        describe_task(getattr(task, field.name))
        if field.name == "task"
        else f"{field.name}={getattr(task, field.name)!r}"
        for field in dataclasses.fields(task)
    )
    return f"{type(task).__name__}({arguments})"


def _results(task: Any, method: str, names: Sequence[str], **arguments: PyTree) -> Sequence[PyTree]:
    """Return the shapes of the several results of a method."""
    returned = _trace(task, method, **arguments)
    if not isinstance(returned, tuple | list) or len(returned) != len(names):
        raise ConfigError(
            f"env.id: {describe_task(task)}: expected {method} to return ({', '.join(names)}), got"
            f" {describe_inline(returned)}; correct the task"
        )
    return returned


def _trace(task: Any, method: str, **arguments: PyTree) -> PyTree:
    given = describe_inline(arguments)
    with calling(f"env.id: {describe_task(task)}.{method}", given=given):
        return jax.eval_shape(getattr(task, method), *arguments.values())


def _signature(tree: PyTree) -> tuple[Any, ...]:
    leaves, structure = jax.tree.flatten(tree)
    return structure, [(leaf.shape, leaf.dtype) for leaf in leaves]
