"""Registration of Gymnasium ids: the modules that an id names, and what to do about unknown ids.

Gymnasium does not import the packages whose environments it can make, and some packages register
theirs only when they are asked to.
"""

import importlib
import importlib.metadata
import types

import gymnasium

from sebulba.config.plugins import import_module, load
from sebulba.envs.lookup import describe_namespace
from sebulba.errors import did_you_mean

_HOOKS = "gymnasium.envs"
"""The group of entry points that packages declare their registering function in."""


def register(name: str) -> str:
    """Import the module of an id, call the function that it names, and return the id alone.

    Args:
        name: `Id`, `module:Id`, or `module:function:Id`.

    Raises:
        ConfigError: there is no such module or function.
    """
    module, _, rest = name.partition(":")
    if not rest:
        return name
    function, _, bare = rest.partition(":")
    if not bare:
        import_module(module, key="env.id")
        return rest
    load(f"{module}:{function}", key="env.id")()
    return bare


def describe_unregistered(name: str) -> str:
    """Return what is wrong with an id that is not registered, and how to register it."""
    module, _, bare = name.rpartition(":")
    problem = f"Gymnasium has no {name!r}"
    if module and ":" not in module:
        functions = _registering_functions(importlib.import_module(module))
        if functions:
            return (
                f"{problem}; importing {module} registers nothing of that name, but {module} has"
                f" {functions[0]}(). Set env.id to {module}:{functions[0]}:{bare}, which calls it"
            )
    hook = None if module else _hook(bare.partition("/")[0])
    if hook is not None:
        return f"{problem}; set env.id to {hook}:{bare}, which asks its package to register it"
    return (
        f"{problem}{did_you_mean(bare, gymnasium.registry)}"
        f"{'' if module else describe_namespace(bare)}"
    )


def _registering_functions(module: types.ModuleType) -> list[str]:
    return [
        name
        for name, value in vars(module).items()
        if isinstance(value, types.FunctionType)
        and value.__module__ == module.__name__
        and name.startswith("register")
    ]


def _hook(namespace: str) -> str | None:
    """Return `module:function` of the package that declares how to register a namespace."""
    for entry in importlib.metadata.entry_points(group=_HOOKS):
        if entry.name == namespace and entry.attr:
            return f"{entry.module}:{entry.attr}"
    return None
