"""Checking and converting values by their declared types."""

import pathlib
import typing

import numpy as np
import pytest

from sebulba.config.coercion import coerce
from sebulba.errors import ConfigError


@pytest.mark.parametrize(
    ("value", "annotation", "expected"),
    [
        (1e6, int, 1_000_000),
        (3, float, 3.0),
        (3, float | None, 3.0),
        (3, int | str, 3),
        (np.float32(0.5), float, 0.5),
        (pathlib.Path("runs/a"), str | None, "runs/a"),
        ([1, 2.0], tuple[float, ...], (1.0, 2.0)),
        ([1, 2.0], tuple[int, ...] | None, (1, 2)),
        ([], tuple[int, ...], ()),
        (None, int | None, None),
        (2, typing.Literal[1, 2], 2),
        ({"a": [1]}, dict[str, typing.Any], {"a": [1]}),
    ],
)
def test_coerce_returns_the_declared_type(value, annotation, expected):
    result = coerce(value, annotation)
    assert result == expected
    assert type(result) is type(expected)
    if isinstance(expected, tuple):
        assert [type(item) for item in result] == [type(item) for item in expected]


@pytest.mark.parametrize(
    ("value", "annotation", "message"),
    [
        (True, int, "expected int, got true (bool)"),
        (True, float, "expected float, got true (bool)"),
        (1, bool, "expected bool, got 1 (int)"),
        (1.5, int, "expected int, got 1.5 (float)"),
        (float("inf"), int, "expected int, got .inf (float)"),
        (float("nan"), float, "expected float, got .nan (float)"),
        (10**400, float, f"expected float, got {10**199} … (int)"),
        ("3", int, "expected int, got '3' (str)"),
        (3, str, "expected str, got 3 (int)"),
        (None, int, "expected int, got null (NoneType)"),
        (3, tuple[int, ...], "expected [int, ...], got 3 (int)"),
        ([1, "a"], tuple[int, ...] | None, "expected [int, ...] | null, got [1, a] (list)"),
        ("fusd", typing.Literal["auto", "fused"], "expected auto | fused, got fusd (str)"),
        (True, typing.Literal[1, 2], "expected 1 | 2, got true (bool)"),
        ([1], dict[str, typing.Any], "expected {name: value, ...}, got [1] (list)"),
        ({1: 2}, dict[str, typing.Any], "expected {name: value, ...}, got {1: 2} (dict)"),
    ],
)
def test_coerce_error_says_what_was_expected_and_what_came(value, annotation, message):
    with pytest.raises(ConfigError) as caught:
        coerce(value, annotation)
    assert str(caught.value) == message


def test_coerce_rejects_an_unsupported_annotation():
    with pytest.raises(TypeError, match="config schema cannot declare"):
        coerce([1, 2], list[int])
