"""The settings of an agent by name, those of wrapped agents included."""

import dataclasses
import re
import typing
from collections.abc import Iterator
from typing import Any

from sebulba.config.coercion import members_of


def settings_of(config: Any) -> Iterator[tuple[str, Any]]:
    """Yield names and values of an agent's settings, those of wrapped agents included."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield from settings_of(value)
        else:
            yield field.name, value


def with_settings(config: Any, **settings: Any) -> Any:
    """Return an agent's settings with other values of those that it has.

    None is ignored where a setting's type does not allow it.
    """
    values = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.name in settings:
            if settings[field.name] is not None or _may_be_none(type(config), field):
                values[field.name] = settings[field.name]
        elif dataclasses.is_dataclass(value):
            values[field.name] = with_settings(value, **settings)
    return dataclasses.replace(config, **values)


def _may_be_none(config_class: type, field: dataclasses.Field) -> bool:
    try:
        declared = typing.get_type_hints(config_class)[field.name]
    except Exception:  # A name of some setting's type may be imported for type checkers only.
        return re.search(r"\b(None|Optional|Any)\b", str(field.type)) is not None
    return not {Any, object, type(None)}.isdisjoint(members_of(declared))
