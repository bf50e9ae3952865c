"""Check and convert plain values to the types that the config schema declares."""

import dataclasses
import sys
import types
import typing
from typing import Any, Literal

import yaml

from sebulba.config import yaml_dialect
from sebulba.errors import ConfigError, did_you_mean
from sebulba.references import Reference


def coerce(value: Any, annotation: Any) -> Any:
    """Return `value` as the type that `annotation` declares.

    An integral float (1e6) fits int, an int fits float, a list fits a tuple and a mapping fits a
    dataclass. A bool is no number, null fits `X | None` only, and no number is infinite or NaN.

    Raises:
        ConfigError: `expected …, got …`.
    """
    if isinstance(value, dict):
        for each in filter(dataclasses.is_dataclass, _alternatives(annotation)):
            return _construct(value, each)
    if not _fits(value, annotation):
        got = f"{yaml_dialect.shown(value)} ({type(value).__name__})"
        raise ConfigError(f"expected {describe_type(annotation)}, got {got}")
    return _convert(value, annotation)


def _construct(value: dict[str, Any], cls: Any) -> Any:
    """Return the dataclass whose fields a mapping sets."""
    annotations = typing.get_type_hints(cls)
    fields = {}
    for name, each in value.items():
        if name not in annotations:
            raise ConfigError(f"unknown key {name}{did_you_mean(name, annotations)}")
        try:
            fields[name] = coerce(each, annotations[name])
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}") from None
    for field in dataclasses.fields(cls):
        if field.default is dataclasses.MISSING and field.name not in fields:
            expected = describe_type(annotations[field.name])
            raise ConfigError(f"expected a value of `{field.name}`, {expected}")
    try:
        return cls(**fields)
    except (TypeError, ValueError) as error:
        raise ConfigError(str(error)) from error


def coerce_text(text: str, annotation: Any) -> Any:
    """Return the value of a flag: the text itself for a declared string, else parsed as YAML.

    Raises:
        ConfigError: the text is no YAML, or its value does not fit.
    """
    alternatives = _alternatives(annotation)
    if str in alternatives:
        return None if text == "null" and type(None) in alternatives else text
    try:
        value = yaml_dialect.parse(text)
    except yaml.MarkedYAMLError as error:
        got = f"{yaml_dialect.shown(text)}: {error.problem}"
        raise ConfigError(f"expected {describe_type(annotation)}, got {got}") from None
    return coerce(value, annotation)


def describe_type(annotation: Any) -> str:
    """Return a type in the notation of configs: `int | null`, `[int, ...]`, `auto | fused`."""
    return " | ".join(_describe_alternative(each) for each in _alternatives(annotation))


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    is_union = typing.get_origin(annotation) in (types.UnionType, typing.Union)
    return typing.get_args(annotation) if is_union else (annotation,)


def _describe_alternative(annotation: Any) -> str:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return " | ".join(yaml_dialect.inline(choice) for choice in arguments)
    if origin is tuple:
        return f"[{describe_type(arguments[0])}, ...]"
    if origin is dict:
        return "{name: value, ...}"
    if dataclasses.is_dataclass(annotation):
        return f"{{{next(iter(typing.get_type_hints(annotation)))}: ..., ...}}"
    names = {Any: "any", type(None): "null", Reference: "module:Name"}
    return names.get(annotation) or annotation.__name__


def _fits(value: Any, annotation: Any) -> bool:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    # Python's bool is an int; a config's is not: `seed: true` is a mistake.
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if annotation is Any:
        return True
    if annotation is Reference:
        return isinstance(value, str) and ":" in value
    if dataclasses.is_dataclass(annotation):
        return isinstance(value, annotation)  # type: ignore[arg-type]
    if origin in (types.UnionType, typing.Union):
        return any(_fits(value, alternative) for alternative in arguments)
    if origin is Literal:
        return any(value == choice and type(value) is type(choice) for choice in arguments)
    if origin is tuple and arguments[1:] == (...,):
        return isinstance(value, list | tuple) and all(_fits(x, arguments[0]) for x in value)
    if origin is dict:
        return isinstance(value, dict) and all(_fits(x, arguments[0]) for x in value)
    if annotation is float:
        # An int may be too large for a float; the comparison fails for infinity and NaN as well.
        return is_number and abs(value) <= sys.float_info.max
    if annotation is int:
        # More than 64 bits fit no counter, and no array.
        return is_number and (isinstance(value, int) or value.is_integer()) and abs(value) < 2**63
    if annotation in (str, bool, type(None)):
        return isinstance(value, annotation)
    raise TypeError(f"the config schema cannot declare {annotation}")


def _convert(value: Any, annotation: Any) -> Any:
    if typing.get_origin(annotation) is tuple:
        return tuple(_convert(item, typing.get_args(annotation)[0]) for item in value)
    if annotation in (int, float):
        return annotation(value)
    alternatives = _alternatives(annotation)
    if len(alternatives) == 1:
        return value
    return _convert(value, next(each for each in alternatives if _fits(value, each)))
