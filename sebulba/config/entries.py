"""Set single entries of a setting that is a mapping: `--env.options.gravity 0.02`."""

import dataclasses
import typing
from collections.abc import Callable, Mapping
from typing import Any

from sebulba.config import yaml_dialect
from sebulba.config.coercion import coerce_text, members_of
from sebulba.config.file import Setting
from sebulba.config.schema import changed_fields
from sebulba.errors import ConfigError


def with_entries(
    settings: Mapping[str, Setting],
    declared: Mapping[str, Any],
    *,
    replaced: Mapping[str, Setting],
    default_of: Callable[[str], Any],
    written: Callable[[str], str],
) -> dict[str, Setting]:
    """Return the settings with every entry put into the mapping that it is an entry of.

    The other entries are those that the same settings, the replaced ones or the default have. A
    number that may also be a mapping, such as a learning rate, has none.

    Args:
        settings: by dotted key.
        declared: the type of every key.
        replaced: what the settings replace.
        default_of: returns the default of a key.
        written: returns a key as its flag.

    Raises:
        ConfigError: a value is no YAML, or an entry that has entries is no mapping.
    """
    flags = {written(key): key for key in declared if is_mapping(declared[key])}
    owners = {key: _owner(key, flags, written) for key in settings if key not in declared}
    merged = {key: setting for key, setting in settings.items() if not owners.get(key)}
    for key, owner in owners.items():
        if owner is None:
            continue
        setting, path = settings[key], key[len(owner) + 1 :].split(".")
        base = merged.get(owner, replaced.get(owner))
        mapping = _as_mapping(default_of(owner) if base is None else _value(base, declared[owner]))
        _put(mapping, path, _value(setting, Any), where=setting.where)
        merged[owner] = Setting(value=mapping, where=setting.where)
    return merged


def is_mapping(annotation: Any) -> bool:
    """Return whether a setting of this type may be a mapping."""
    return any(
        typing.get_origin(each) is dict or dataclasses.is_dataclass(each)
        for each in members_of(annotation)
    )


def _owner(key: str, flags: Mapping[str, str], written: Callable[[str], str]) -> str | None:
    """Return the mapping that a key is an entry of; None: the key is unknown."""
    parts = key.split(".")
    prefixes = (".".join(parts[:length]) for length in range(len(parts) - 1, 0, -1))
    return next((flags[written(each)] for each in prefixes if written(each) in flags), None)


def _value(setting: Setting, annotation: Any) -> Any:
    if not setting.is_text:
        return setting.value
    try:
        return coerce_text(setting.value, annotation)
    except ConfigError as error:
        raise ConfigError(f"{setting.where}: {error}") from None


def _as_mapping(value: Any) -> dict[str, Any]:
    """Return the entries of a value; another than a mapping, such as a number, has none."""
    if dataclasses.is_dataclass(value):
        return changed_fields(value)
    return dict(value) if isinstance(value, dict) else {}


def _put(mapping: dict[str, Any], path: list[str], value: Any, *, where: str) -> None:
    """Set an entry of a mapping of mappings; the inner ones are copied."""
    *parents, name = path
    for parent in parents:
        inner = mapping.get(parent)
        if inner is not None and not isinstance(inner, dict):
            got = yaml_dialect.shown(inner)
            raise ConfigError(f"{where}: expected {parent} to be a mapping, got {got}")
        mapping[parent] = dict(inner or {})
        mapping = mapping[parent]
    mapping[name] = value
