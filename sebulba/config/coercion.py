"""Check and convert plain values to the types and ranges that the config schema declares."""

import dataclasses
import math
import numbers
import os
import sys
import types
import typing
from typing import Annotated, Any, Literal

import yaml

from sebulba.config import yaml_dialect
from sebulba.errors import ConfigError, did_you_mean
from sebulba.ranges import Range
from sebulba.references import Reference
from sebulba.toolkit.schedules import Schedule


def coerce(value: Any, annotation: Any) -> Any:
    """Return `value` as the type that `annotation` declares.

    An integral float (1e6) fits int, an int fits float, a path fits str, a list fits a tuple and a
    mapping fits a dataclass. A bool is no number, null fits `X | None` only, and no number is
    infinite or NaN.

    Raises:
        ConfigError: `expected …, got …`.
        TypeError: no config can have a value of this type.
    """
    try:
        return _convert(value, annotation)
    except _Misfit as misfit:
        got = yaml_dialect.shown(value)
        kind = "" if isinstance(misfit, _OutOfRange) else f" ({type(value).__name__})"
        raise ConfigError(f"expected {describe_type(annotation)}, got {got}{kind}") from None


def coerce_text(text: str, annotation: Any) -> Any:
    """Return the value of a flag: the text itself for a declared string, else parsed as YAML.

    Raises:
        ConfigError: the text is no YAML, or its value does not fit.
    """
    alternatives = members_of(annotation)
    if str in alternatives:
        return None if text == "null" and type(None) in alternatives else text
    try:
        value = yaml_dialect.parse(text)
    except yaml.MarkedYAMLError as error:
        got = f"{yaml_dialect.shown(text)}: {error.problem}"
        raise ConfigError(f"expected {describe_type(annotation)}, got {got}") from None
    return coerce(value, annotation)


def describe_type(annotation: Any) -> str:
    """Return a type in the notation of configs: `int ≥ 1 | null`, `[int, ...]`, `auto | fused`."""
    declared, limits = _split(annotation)
    alternatives = members_of(declared)
    if len(alternatives) > 1:
        # The range of a union is that of its numbers.
        return " | ".join(describe_type(Annotated[each, limits]) for each in alternatives)
    origin, arguments = typing.get_origin(declared), typing.get_args(declared)
    if origin is Literal:
        return " | ".join(yaml_dialect.inline(choice) for choice in arguments)
    if origin is tuple:
        return f"[{describe_type(arguments[0])}, ...]"
    if origin is dict:
        return "{name: value, ...}"
    if dataclasses.is_dataclass(declared):
        return f"{{{next(iter(typing.get_type_hints(declared)))}: ..., ...}}"
    if declared in (int, float):
        return f"{declared.__name__} {limits}".strip()
    names = {Any: "any", type(None): "null", Reference: "module:Name"}
    return names.get(declared) or declared.__name__


def members_of(annotation: Any) -> tuple[Any, ...]:
    """Return the members of a union, or the type itself."""
    declared, _ = _split(annotation)
    is_union = typing.get_origin(declared) in (types.UnionType, typing.Union)
    return typing.get_args(declared) if is_union else (declared,)


class _Misfit(Exception):
    """A value is not of the declared type."""


class _OutOfRange(_Misfit):
    """A value is of the declared type, and a number is not in its range."""


def _convert(value: Any, annotation: Any) -> Any:
    declared, limits = _split(annotation)
    alternatives = members_of(declared)
    if len(alternatives) > 1:
        misfit = _Misfit()
        for each in alternatives:
            try:
                return _convert(value, Annotated[each, limits])
            except _OutOfRange as out_of_range:
                misfit = out_of_range
            except _Misfit:
                pass
        raise misfit

    if declared is Any:
        return value
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if dataclasses.is_dataclass(declared):
        return _construct(value, declared, limits)
    origin, arguments = typing.get_origin(declared), typing.get_args(declared)
    # Python's bool is an int; a config's is not: `seed: true` is a mistake.
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if declared is int:
        # More than 64 bits fit no counter, and no array.
        fits = is_number and abs(value) < 2**63 and value == int(value)
    elif declared is float:
        # An int may be too large for a float.
        is_int = isinstance(value, int)
        fits = is_number and (abs(value) <= sys.float_info.max if is_int else math.isfinite(value))
    elif declared is Reference:
        fits = isinstance(value, str) and ":" in value
    elif declared in (str, bool, type(None)):
        fits = isinstance(value, declared)
    elif origin is Literal:
        fits = any(value == choice and type(value) is type(choice) for choice in arguments)
    elif origin is dict:
        fits = isinstance(value, dict) and all(isinstance(key, arguments[0]) for key in value)
    elif origin is tuple and arguments[1:] == (...,):
        fits = isinstance(value, list | tuple)
    else:
        raise TypeError(f"the config schema cannot declare {declared}")
    if not fits:
        raise _Misfit
    if origin is tuple:
        return tuple(_convert(each, arguments[0]) for each in value)
    if declared in (int, float):
        value = declared(value)
        if value not in limits:
            raise _OutOfRange
    return value


def _construct(value: Any, cls: Any, limits: Range) -> Any:
    """Return the dataclass whose fields a mapping sets, or check a dataclass that exists."""
    settings = vars(value) if isinstance(value, cls) else value
    if not isinstance(settings, dict):
        raise _Misfit
    annotations = typing.get_type_hints(cls, include_extras=True)
    fields = {}
    for name, each in settings.items():
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
        made = cls(**fields)
    except (TypeError, ValueError) as error:
        raise ConfigError(str(error)) from error
    if isinstance(made, Schedule) and not all(number in limits for number in made.numbers):
        raise _OutOfRange
    return made


def _split(annotation: Any) -> tuple[Any, Range]:
    """Return a type without its range, and the range."""
    if typing.get_origin(annotation) is not Annotated:
        return annotation, Range()
    declared, *metadata = typing.get_args(annotation)
    return declared, next((each for each in metadata if isinstance(each, Range)), Range())
