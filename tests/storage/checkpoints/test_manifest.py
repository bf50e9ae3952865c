"""The manifest: paths, types, checksums, and the table of what differs."""

import json
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sebulba.storage.checkpoints.manifest import (
    Leaf,
    Manifest,
    ManifestError,
    compare,
    crc32_of,
    crc32_of_json,
    flatten,
    leaf_of,
    table,
)
from tests.toys import ToyState

MANIFEST = Manifest(
    step=7,
    score=1.5,
    meta={"env_steps": 12, "name": "é"},
    leaves={"a": Leaf(shape=(2, 3), dtype="float32"), "key": Leaf(shape=(), dtype="key<fry>")},
    crc32={"a": "00000002", "key": "00000003"},
)


def test_manifest_survives_a_round_trip_through_json():
    assert Manifest.from_json(json.loads(json.dumps(MANIFEST.to_json()))) == MANIFEST


def with_crc32(value):
    return {**value, "crc32": crc32_of_json(value)}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "expected a manifest, got 'None'"),
        ([], "expected a manifest"),
        ({}, "expected a manifest"),
        ({**MANIFEST.to_json(), "step": 8}, "expected CRC32"),
        (with_crc32({"format": 3}), "expected format 2, got 3"),
        (with_crc32({"format": 2, "leaves": {"a": {"shape": [1]}}}), "expected a manifest"),
    ],
)
def test_manifest_refuses_other_json_values(value, message):
    with pytest.raises(ManifestError, match=message):
        Manifest.from_json(value)


def test_flatten_names_leaves_by_their_paths_in_order():
    tree = {"b": ToyState(key=1, count=2), "a": [3, {"c": 4}]}
    assert flatten(tree) == {"a.0": 3, "a.1.c": 4, "b.key": 1, "b.count": 2}


def test_flatten_refuses_two_leaves_with_one_path():
    with pytest.raises(ValueError, match=r"a\.b twice"):
        flatten({"a.b": 1, "a": {"b": 2}})


def test_leaf_of_keys_has_their_dtype_and_shape():
    assert str(leaf_of(jax.random.split(jax.random.key(0), 3))) == "key<fry>[3]"
    assert str(leaf_of(jax.ShapeDtypeStruct((4, 5), jnp.bfloat16))) == "bfloat16[4,5]"
    assert str(leaf_of(np.float64(1))) == "float64[]"


def test_crc32_covers_the_elements_in_row_major_order():
    array = np.arange(6, dtype=np.int32).reshape(2, 3)
    assert crc32_of(array) == f"{zlib.crc32(array.tobytes()):08x}"
    assert crc32_of(array.T) == f"{zlib.crc32(array.T.tobytes()):08x}"
    assert crc32_of(b"123456789") == "cbf43926"  # the check value of CRC-32/ISO-HDLC


@pytest.mark.parametrize(
    "array", [np.float32(1), np.zeros((0, 3)), np.ones(3, jnp.bfloat16), np.array([True])], ids=repr
)
def test_crc32_takes_any_type_and_shape(array):
    assert crc32_of(np.asarray(array)) == f"{zlib.crc32(array.tobytes()):08x}"


def test_crc32_of_json_does_not_depend_on_the_order_of_keys():
    assert crc32_of_json({"a": 1, "b": [0.1]}) == crc32_of_json({"b": [0.1], "a": 1})
    assert crc32_of_json({"a": 1}) != crc32_of_json({"a": 2})


def test_table_shows_different_missing_and_extra_leaves():
    stored = {"same": 1, "other": Leaf(shape=(64,), dtype="float32"), "extra": "x"}
    expected = {"same": 1, "missing": "y", "other": Leaf(shape=(128,), dtype="float32")}
    assert table(compare(stored, expected)) == (
        "  leaf     stored       expected\n"
        "  missing  absent       y\n"
        "  other    float32[64]  float32[128]\n"
        "  extra    x            absent"
    )


def test_table_ends_after_twenty_rows():
    lines = table(compare({}, {f"leaf{i}": i for i in range(25)})).splitlines()
    assert len(lines) == 1 + 20 + 1
    assert lines[-1] == "  … and 5 more"
