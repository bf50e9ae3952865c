"""Parts that a config names: one of ours, or the user's as `module:Name`. Imports no jax."""

import dataclasses
import importlib
import pathlib
import sys
import types
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, NewType

from sebulba.errors import ConfigError, describe_error, did_you_mean

Reference = NewType("Reference", str)
"""The type of a setting whose value is `module:Name`."""
Network = Literal["auto", "mlp", "relu_mlp", "flat", "small", "shallow", "dqn", "deep"] | Reference
"""The type of `agent.network`; `sebulba.toolkit.torsos` explains the values."""
CORES = {
    "lstm": "sebulba.toolkit.lstm:LSTMCore",
    "gru": "sebulba.toolkit.gru:GRUCore",
    "lru": "sebulba.toolkit.lru:LRUCore",
    "gtrxl": "sebulba.toolkit.gtrxl:GTrXLCore",
}
"""Recurrent cores by the value of `agent.core`, as `module:Name`; see `sebulba.toolkit.cores`."""
if TYPE_CHECKING:
    Core = str
else:
    Core = Literal[tuple(CORES)] | Reference
"""The type of `agent.core`: a name in `CORES`, or `module:Name`."""


class Named(str):
    """A name in a config that carries the object it names; see `sebulba.config.objects`."""

    value: Any

    def __new__(cls, name: str, value: Any) -> "Named":
        """Return the string `name` that carries `value`."""
        named = super().__new__(cls, name)
        named.value = value
        return named

    def __deepcopy__(self, memo: dict) -> "Named":
        # `dataclasses.asdict` copies the values of a config.
        return self


def load(reference: str, *, key: str = "") -> Any:
    """Import what `module:Name` refers to.

    Args:
        reference: `module:Name`.
        key: the config key that has this value; begins the error if given.

    Raises:
        ConfigError: the module does not exist, raises, or has no such name, as that of a lambda.
        ImportError: the module is ours, and its imports fail.
    """
    if isinstance(reference, Named):
        return reference.value
    refuse_local(reference, key=key)
    module_name, _, name = reference.partition(":")
    if not (module_name and name):
        raise ConfigError(f"{_prefix(key)}expected module:Name, got {reference!r}")
    module = import_module(module_name, key=key)
    if not hasattr(module, name):
        public = [each for each in vars(module) if not each.startswith("_")]
        raise ConfigError(f"{_prefix(key)}{module_name} has no {name}{did_you_mean(name, public)}")
    return getattr(module, name)


def refuse_local(reference: str, *, key: str) -> None:
    """Raise a ConfigError about `module:Name` of what this process cannot import.

    It is a lambda, inside of a function, or in a script that another process ran.
    """
    module, _, name = reference.partition(":")
    if "<" in reference:
        what = "a lambda or a local name"
    elif module == "__main__" and not hasattr(sys.modules[module], name.partition(":")[0]):
        what = "of the script that trained"
    else:
        return
    raise ConfigError(
        f"{_prefix(key)}{reference} is {what}, which cannot be imported. Give the object itself,"
        " agent=... or environment=..., to sebulba.load_policy or sebulba.train, or define it at"
        " the top level of a module"
    )


def refuse_references(value: Any, *, where: str) -> None:
    """Raise a ConfigError if a value is or contains `module:Name`, whose module would be imported.

    Everything that a config can import has a colon, except our own names and entry points of
    installed packages. So every string with one is refused, whatever its key means by it. Modules
    of our own are refused too: `sebulba.launch:run_together` would be called with the options of
    an environment.

    Args:
        value: plain data of a config, which may be nested.
        where: begins the error.
    """
    for each in strings_in(value):
        if ":" in each and not isinstance(each, Named):
            raise ConfigError(
                f"{where}: expected no module:Name, since imports are off, got {each!r}. If you"
                " trust that code, load the run with imports, or give the object"
                " itself, agent=... or environment=..., to sebulba.load_policy"
            )


def strings_in(value: Any) -> Iterator[str]:
    """Yield the strings in a value of a config, which may be nested: keys of mappings, too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, each in value.items():
            yield from strings_in(name)
            yield from strings_in(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from strings_in(each)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from strings_in(getattr(value, field.name))


def import_module(name: str, *, key: str = "") -> types.ModuleType:
    """Import a module that a config names.

    Raises:
        ConfigError: the module does not exist, or raises.
        ImportError: an import of a module of ours fails, such as that of an extra.
    """
    if "/" in name or name.endswith(".py"):
        file = pathlib.PurePath(name)
        raise ConfigError(
            f"{_prefix(key)}expected the name of a module, got the file {name}. Write"
            f" {file.stem}:Name, and set PYTHONPATH to the directory of {file.name}"
        )
    try:
        return importlib.import_module(name)
    except Exception as error:
        problem = f"importing {name} raised {describe_error(error)}"
        # The module itself or a package that holds it; a dependency of it is another problem.
        if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
            problem = f"there is no module {error.name!r}"
        elif isinstance(error, ImportError) and name.startswith("sebulba"):
            raise
        raise ConfigError(f"{_prefix(key)}{problem}") from error


def _prefix(key: str) -> str:
    return f"{key}: " if key else ""
