"""Registration of Gymnasium ids: the modules that an id names, and what to do about unknown ids.

Gymnasium does not import the packages whose environments it can make, and some packages register
theirs only when they are asked to.
"""

import functools
import importlib
import importlib.metadata
import sys
import types
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from sebulba.envs.lookup import describe_namespace
from sebulba.envs.old_gym import OldGym, has_old_interface
from sebulba.envs.spaces import observation_spec
from sebulba.errors import ConfigError, did_you_mean
from sebulba.references import Named, import_module, load, refuse_local

_WRAPPER_OF_MINIGRID = '"minigrid.wrappers:ImgObsWrapper"'

_HOOKS = "gymnasium.envs"
"""The group of entry points that packages declare their registering function in."""


def register(name: str) -> str | EnvSpec:
    """Import the module of an id, call the function that it names, and return what to make.

    Args:
        name: `Id`, `module:Id`, `module:Class`, `module:function:Id`, or the name of an object.

    Returns:
        The id alone, or the specification of a class or function.

    Raises:
        ConfigError: there is no such module or function.
    """
    if isinstance(name, Named):
        return _spec_of(name.value)
    module, _, rest = name.partition(":")
    if not rest:
        return name
    refuse_local(name, key="env.id")
    function, _, bare = rest.partition(":")
    if not bare:
        own = getattr(import_module(module, key="env.id"), rest, None)
        return _spec_of(own) if callable(own) else rest
    load(f"{module}:{function}", key="env.id")()
    return bare


def _spec_of(entry_point: Any) -> EnvSpec:
    if isinstance(entry_point, EnvSpec):
        return entry_point
    if has_old_interface(entry_point):
        entry_point = functools.partial(OldGym, entry_point)
    return EnvSpec(id="Own-v0", entry_point=entry_point)


def check_observation(spec: EnvSpec | None, space: gymnasium.Space) -> None:
    """Check that every part of a Dict observation is arrays, and else say how to leave it out.

    Raises:
        ConfigError: only some parts are; names the wrapper that selects them.
    """
    if not isinstance(space, gymnasium.spaces.Dict):
        return
    arrays = [name for name, child in space.items() if _is_of_arrays(child)]
    others = [f"{type(space[name]).__name__} {name!r}" for name in space if name not in arrays]
    if not arrays or not others:
        return
    wrapper = f"{{gymnasium.wrappers:FilterObservation: {{filter_keys: [{', '.join(arrays)}]}}}}"
    if spec is not None and _module_of(spec.entry_point).startswith("minigrid."):
        wrapper = _WRAPPER_OF_MINIGRID
    raise ConfigError(
        f"env.id: expected observations of arrays, got {', '.join(others)}. Set env.wrappers:"
        f" [{wrapper}]"
    )


def _is_of_arrays(space: gymnasium.Space) -> bool:
    try:
        observation_spec(space)
    except ConfigError:
        return False
    return True


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
    if module:
        loaded = sys.modules.get(module.partition(":")[0])
        if ":" not in module and hasattr(loaded, bare):
            got = f"{bare} = {getattr(loaded, bare)!r}"
            return f"expected a class, a function or a registered ID of {module}, got {got}"
        registered = [*_registered_by(module), *_environments_in(loaded)]
        if not registered:
            return f"{problem}; call gymnasium.register({bare!r}, ...) where {module} is imported"
        return f"{problem}{did_you_mean(bare, registered)}"
    how = describe_namespace(bare) or (
        "; for an ID of another package or of your own, write module:ID, which imports the module"
        " that registers it, or module:Class"
    )
    return f"{problem}{did_you_mean(bare, gymnasium.registry)}{how}"


def _registered_by(module: str) -> list[str]:
    """Return the ids whose classes are in a module, or in a module of that package."""
    parent = module.partition(":")[0]
    return [
        name
        for name, spec in gymnasium.registry.items()
        if f"{_module_of(spec.entry_point)}.".startswith(f"{parent}.")
    ]


def _environments_in(module: types.ModuleType | None) -> list[str]:
    """Return the names of the environment classes that a module defines."""
    return (
        [
            name
            for name, value in vars(module).items()
            if isinstance(value, type)
            and issubclass(value, gymnasium.Env)
            and value.__module__ == module.__name__
        ]
        if module is not None
        else []
    )


def _module_of(entry_point: Any) -> str:
    named = entry_point if isinstance(entry_point, str) else getattr(entry_point, "__module__", "")
    return named.partition(":")[0]


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
