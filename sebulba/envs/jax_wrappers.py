"""Wrappers of JAX tasks: functions from one task to another."""

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium

from sebulba.envs.jax_environment import (
    IN_TURNS,
    TASK_MEMBERS,
    JaxTask,
    action_mask_of,
    num_players_of,
)
from sebulba.envs.wrappers import Wrapper

_GYMNASIUM_WRAPPERS = (gymnasium.Wrapper, gymnasium.vector.VectorWrapper)


def of_inner_state(task: JaxTask, name: str) -> Callable[[Any], Any] | None:
    """Return an optional method of a wrapped task, as a method of its wrapper's state.

    Args:
        task: inside a wrapper whose state has the task's own as `task_state`.
        name: `action_mask` or `render`.
    """
    method = getattr(task, name, None)
    return None if method is None else lambda state: method(state.task_state)


def wrap(task: JaxTask, wrappers: Sequence[Wrapper]) -> JaxTask:
    """Return the task inside its wrappers, of which the first is the innermost.

    Raises:
        ConfigError: a wrapper is Gymnasium's, does not return a task, or loses the action mask, the
            number of players or whose turn it is.
    """
    for wrapper in wrappers:
        function = wrapper.function
        if isinstance(function, type) and issubclass(function, _GYMNASIUM_WRAPPERS):
            raise wrapper.refusal(f"a wrapper of {type(task).__name__}, a JAX task", "Gymnasium's")
        has_mask = action_mask_of(task) is not None
        has_players = num_players_of(task) is not None
        members = [*TASK_MEMBERS, *(["action_mask"] if has_mask else [])]
        members += ["num_players"] if has_players else []
        members += [IN_TURNS] if hasattr(task, IN_TURNS) else []
        task = wrapper(task)
        missing = [name for name in members if not hasattr(task, name)]
        if missing:
            got = f"{type(task).__name__} without {' and '.join(missing)}"
            raise wrapper.refusal("a JAX task", got)
    return task
