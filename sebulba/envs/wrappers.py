"""Wrappers that a config names, in `env.wrappers`: what is put around each single environment.

An entry is `module:Name`, or `{module:Name: {argument: value, ...}}`. The first is the innermost.
What is called, with what it wraps as first argument, depends on the suite: a Gymnasium wrapper, or
in the JAX suites a function from `JaxTask` to `JaxTask`. Worker processes import this module, so
it must not import jax.
"""

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from sebulba.config.yaml_dialect import shown
from sebulba.envs.identity import NAMES, asked_for
from sebulba.errors import ConfigError, calling, did_you_mean
from sebulba.references import load


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wrapper:
    """Wraps one environment; can be pickled, for worker processes."""

    key: str  # the config's, for messages
    name: str  # module:Name
    function: Callable[..., Any]
    arguments: dict[str, Any]

    def __call__(self, environment: Any) -> Any:
        """Return the wrapped environment.

        Raises:
            ConfigError: the wrapper raised.
        """
        given = f"{type(environment).__name__} and {shown(self.arguments)}"
        with calling(f"{self.key}: {self.name}", given=given):
            return self.function(environment, **self.arguments)

    def refusal(self, expected: str, got: Any) -> ConfigError:
        """Return the error about a wrapper of the wrong kind."""
        return ConfigError(f"{self.key}: expected {expected}, got {got} from {self.name}")


def load_wrappers(entries: Sequence[Any]) -> tuple[Wrapper, ...]:
    """Import the wrappers of `env.wrappers`.

    Raises:
        ConfigError: an entry has another form, or there is no such name or argument.
    """
    return tuple(_load(entry, f"env.wrappers[{i}]") for i, entry in enumerate(entries))


def _load(entry: Any, key: str) -> Wrapper:
    name: Any = entry
    arguments: Any = {}
    if isinstance(entry, dict) and len(entry) == 1:
        ((name, arguments),) = entry.items()
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise ConfigError(
            f"{key}: expected module:Name or {{module:Name: {{argument: value}}}}, got"
            f" {shown(entry)}"
        )
    function = load(name, key=key)
    if not callable(function):
        raise ConfigError(f"{key}: expected a class or a function, got {name} = {function!r}")
    _check_arguments(function, arguments, f"{key} {name}")
    return Wrapper(key=key, name=name, function=function, arguments=arguments)


def _check_arguments(function: Callable[..., Any], arguments: dict[str, Any], where: str) -> None:
    try:
        signature = inspect.signature(function)
    except ValueError:  # Written in C: its own error has to do.
        return
    try:
        signature.bind(None, **asked_for(function, dict.fromkeys(NAMES)) | arguments)
    except TypeError as error:
        _, *valid = signature.parameters
        unknown = [name for name in arguments if name not in valid]
        raise ConfigError(
            f"{where}: {error}{did_you_mean(unknown[0], valid) if unknown else ''}"
        ) from error
