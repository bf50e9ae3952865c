"""Checksums and sketches of arrays."""

import json

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from sebulba.storage.checksums import (
    LeafSum,
    checksums_of,
    next_row,
)
from sebulba.storage.sketches import Checksums, leaf_sum


def test_rows_are_dense_at_first_and_stay_few():
    rows, cycles = [], 0
    while cycles < 300_000:
        cycles = next_row(cycles)
        rows.append(cycles)
    assert rows[:9] == [1, 2, 5, 10, 20, 50, 100, 200, 400]
    assert {19_800, 20_000, 22_000, 198_000, 200_000, 220_000, 300_000} <= set(rows)
    assert 20_200 not in rows and 202_000 not in rows
    assert next_row(4_711) == 4_800


@pytest.mark.parametrize("size", [3, 4096, 30_000])
def test_a_sketch_tells_how_far_two_leaves_are_apart(size):
    random = np.random.default_rng(3)
    leaf = random.normal(size=size).astype(np.float32)
    change = (1e-6 * random.normal(size=size)).astype(np.float32)
    first, second = leaf_sum([leaf]), leaf_sum([leaf + change])
    apart = float(np.linalg.norm((leaf + change).astype(np.float64) - leaf))
    assert first.crc32 != second.crc32
    assert first.norm == pytest.approx(float(np.linalg.norm(leaf)), rel=1e-5)
    assert first.distance(second) == pytest.approx(apart, rel=1.5)
    assert first.distance(first) == 0.0


def test_one_changed_element_is_seen_in_the_checksum_and_in_the_sketch():
    leaf = np.ones((100, 100), np.float32)
    other = leaf.copy()
    other[99, 99] += 2e-4
    first, second = leaf_sum([leaf]), leaf_sum([other])
    assert first.crc32 != second.crc32
    assert first.distance(second) == pytest.approx(2e-4, rel=1e-2)


def test_integers_and_bools_have_no_sketch():
    assert leaf_sum([np.arange(4)]).to_json() == [leaf_sum([np.arange(4)]).crc32]
    assert leaf_sum([np.array([True])]).distance(leaf_sum([np.array([False])])) is None


def test_arrays_one_after_another_have_the_checksum_of_the_whole():
    array = np.arange(12, dtype=np.float32)
    parts = leaf_sum([array[:6], array[6:]])
    assert parts.crc32 == leaf_sum([array]).crc32
    assert parts.norm == leaf_sum([array]).norm


@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38])
def test_a_leaf_with_numbers_that_are_not_finite_has_a_checksum(value):
    leaf = leaf_sum([np.full(3, value, np.float32)])
    assert leaf.norm is None
    assert LeafSum.from_json(json.loads(json.dumps(leaf.to_json()))) == leaf
    if value != 3e38:
        assert leaf.distance(leaf_sum([np.ones(3, np.float32)])) is None


def test_small_floats_keys_and_empty_leaves_have_checksums():
    tree = {
        "half": jnp.ones(3, ml_dtypes.bfloat16),
        "key": jax.random.key(0),
        "none": jnp.zeros((0, 3)),
        "scalar": jnp.float32(2),
    }
    leaves = Checksums().of("networks", [tree])
    assert list(leaves) == [f"networks.{name}" for name in tree]
    assert leaves["networks.half"].norm == pytest.approx(np.sqrt(3))
    assert leaves["networks.key"].projections == ()
    assert leaves["networks.none"].norm == 0.0
    assert leaves["networks.scalar"].norm == 2.0
    other = Checksums().of("networks", [tree | {"key": jax.random.key(1)}])
    assert [name for name in leaves if leaves[name] != other[name]] == ["networks.key"]


def test_damaged_lines_are_left_out(tmp_path):
    path = tmp_path / "checksums.jsonl"
    row = {"learner_cycles": 3, "env_steps": 60, "leaves": {"networks.w": ["00000000"]}}
    path.write_text(f'{json.dumps(row)}\n{{"learner_cycles": 4}}\n[]\nnothing\n{json.dumps(row)}')
    (read,) = checksums_of(tmp_path)
    assert (read.num_cycles, read.env_steps) == (3, 60)
    assert read.leaves == {"networks.w": LeafSum(crc32="00000000")}
