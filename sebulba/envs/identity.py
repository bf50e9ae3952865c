"""What an environment is told about itself if its constructor asks: its number and its purpose.

So environments with files, licences or ports of their own can be told apart. A constructor, factory
or wrapper asks by a parameter of the name:

- `env_index`: the number of the environment among all that a run makes for the same purpose, those
  of all actors of all hosts. A recreated environment has the number of the one before it.
- `purpose`: `train`, `evaluate`, or `inspect`: it is made only for its spaces or a test frame, and
  closed again.

Worker processes import this module, so it must not import jax.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal

Purpose = Literal["train", "evaluate", "inspect"]
NAMES = ("env_index", "purpose")


def asked_for(function: Callable[..., Any] | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that a function has a parameter of the same name for.

    Args:
        function: the class or function; None: it has no parameters.
        given: arguments by name.
    """
    try:
        parameters = inspect.signature(function).parameters if function is not None else {}
    except (TypeError, ValueError):  # Written in C.
        return {}
    return {name: value for name, value in given.items() if name in parameters}
