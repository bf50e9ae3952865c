"""The settings of an agent by name, those of wrapped agents included."""

import dataclasses
from collections.abc import Iterator
from typing import Any


def settings_of(config: Any) -> Iterator[tuple[str, Any]]:
    """Yield names and values of an agent's settings, those of wrapped agents included."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield from settings_of(value)
        else:
            yield field.name, value


def with_settings(config: Any, **settings: Any) -> Any:
    """Return an agent's settings with other values of those that it has."""
    values = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.name in settings:
            values[field.name] = settings[field.name]
        elif dataclasses.is_dataclass(value):
            values[field.name] = with_settings(value, **settings)
    return dataclasses.replace(config, **values)
