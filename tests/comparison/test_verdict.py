"""The verdict on a repetition: a cause, and a size."""

import re

import numpy as np
import pytest

from sebulba.comparison.rows import compare_checksums
from sebulba.comparison.starts import Difference
from sebulba.comparison.verdict import verdict_of
from sebulba.storage.checksums import ChecksumRow
from tests.comparison.test_rows import WEIGHTS, row

CPU = Difference(kind="machine", name="CPU", first="A", second="B")
CODE = Difference(kind="code", name="sebulba", first="commit a", second="commit b")
CYCLES = (1, 2, 100)


def verdict(found, *changes):
    """Returns the verdict on rows with these changes of the rows at `CYCLES`."""
    rows = [row(cycle) for cycle in CYCLES]
    others = [row(cycle, **change) for cycle, change in zip(CYCLES, changes, strict=True)]
    return verdict_of(compare_checksums(rows, others), found)


def times(factor):
    return {"weights": WEIGHTS * np.float32(factor)}


@pytest.mark.parametrize("found", [[], [CPU], [CODE]])
def test_equal_rows_are_the_same_bits_whatever_else_differs(found):
    same = verdict(found, {}, {}, {})
    assert same.kind == "same"
    assert "the same bits up to learner cycle 100" in same.lines[0]
    assert "in all 3 rows" in same.lines[0]


def learning(*changes):
    """Returns the verdict on rows of a run whose networks change from row to row."""
    weights = [{"weights": WEIGHTS * np.float32(cycle)} for cycle in CYCLES]
    rows = [row(cycle, **each) for cycle, each in zip(CYCLES, weights, strict=True)]
    others = [
        row(cycle, **{**each, **change})
        for cycle, each, change in zip(CYCLES, weights, changes, strict=True)
    ]
    return verdict_of(compare_checksums(rows, others), [])


@pytest.mark.parametrize(
    ("change", "name"),
    [(times(1.5), "networks.weights"), ({"action": 1}, "trajectories.action")],
)
def test_a_row_that_differs_before_equal_ones_is_damaged(change, name):
    same = learning({}, change, {})
    assert same.kind == "same"
    assert "the same bits up to learner cycle 100" in same.lines[0]
    assert "in 2 of 3 rows" in same.lines[0]
    assert same.lines[1:] == (
        f"the row of learner cycle 2 is damaged: {name} has another checksum there, although later"
        " rows are equal",
    )


@pytest.mark.parametrize(
    "changes",
    [
        ({"action": 1}, {"action": 1}, {}),
        ({"action": 1}, {"action": 1}, {"has_trajectories": False}),
        ({}, {"action": 1}, {"has_trajectories": False}),
    ],
)
def test_trajectories_that_differ_are_no_damage_unless_later_ones_show_it(changes):
    """Such as those of an environment with random numbers of its own."""
    other = learning(*changes)
    assert other.kind == "other" and "trajectories parted first" in other.lines[-1]


@pytest.mark.parametrize("changes", [({}, {"action": 1}, {}), ({"action": 1}, {}, {})])
def test_trajectories_that_nothing_was_learned_from_are_no_damage(changes):
    """Networks stay the same, whatever the environments do."""
    other = verdict([], *changes)
    assert other.kind == "other" and "trajectories parted first" in other.lines[-1]


def test_a_row_whose_networks_are_missing_is_not_equal():
    rows = [row(1), row(2, weights=WEIGHTS * np.float32(2))]
    emptied = ChecksumRow(num_cycles=2, env_steps=20, leaves={})
    other = verdict_of(compare_checksums([rows[0], emptied], rows), [])
    assert other.kind == "other" and "of cycle 1, is equal" in other.lines[-1]
    same = verdict_of(compare_checksums([emptied, row(3)], [rows[1], row(3)]), [])
    assert same.kind == "same" and "the row of learner cycle 2 is damaged" in same.lines[1]


@pytest.mark.parametrize("found", [[], [CODE]])
def test_the_smallest_difference_without_another_machine_is_another_result(found):
    other = verdict(found, {}, times(1 + 2e-7), times(1 + 2e-7))
    assert other.kind == "other"
    assert other.lines[0] == "another result from learner cycle 2 on"
    assert (
        "all that is recorded of CPU, threads, versions, flags and code is equal" in other.lines
        or found
    )
    assert "networks.weights, by" in other.lines[-1] and "updates parted first" in other.lines[-1]


def test_a_small_difference_on_another_machine_is_consistent_with_rounding():
    rounding = verdict([CPU], {}, times(1 + 2e-7), times(1 + 1e-4))
    assert rounding.kind == "rounding"
    assert rounding.lines[0].startswith(
        "consistent with rounding up to learner cycle 100: other CPU"
    )
    assert re.search(r"differences of about [1-9]e-05 of the norm", rounding.lines[0])
    assert "after learner cycle 2 (the row before, of cycle 1, is equal)" in rounding.lines[1]


def test_rounding_ends_where_an_integer_differs():
    rounding = verdict([CPU], {}, times(1 + 2e-7), {**times(1 + 1e-5), "action": 1})
    assert rounding.kind == "rounding"
    assert "up to learner cycle 2:" in rounding.lines[0]
    assert (
        "after learner cycle 100 there are other integers, such as in trajectories.action"
        in (rounding.lines[-1])
    )


@pytest.mark.parametrize("change", [times(1.01), {"action": 1}])
def test_a_large_first_difference_is_another_result_on_any_machine(change):
    other = verdict([CPU], {}, change, change)
    assert other.kind == "other"


@pytest.mark.parametrize(("factor", "kind"), [(1.01, "other"), (1 + 2e-7, "rounding")])
def test_moments_of_observations_do_not_hide_what_the_parameters_do(factor, kind):
    """Of the common norm, parameters that differ by 1 % differ by 1e-7."""
    same = {
        "networks.params.count": np.array(1e6, np.float32),
        "networks.moments.count": np.array(1e6, np.float32),
        "networks.moments.variance": np.full(17, 1e5, np.float32),
    }
    rows = [
        row(1, **same, **{"networks.params.kernel": WEIGHTS * np.float32(times)})
        for times in (1, factor)
    ]
    assert verdict_of(compare_checksums(rows[:1], rows[1:]), [CPU]).kind == kind


def test_code_that_differs_beside_the_machine_is_named_as_a_cause():
    rounding = verdict([CODE, CPU], *[times(1 + 2e-7)] * 3)
    assert rounding.kind == "rounding"
    assert rounding.lines[-1] == "the code differs, too, and may be the cause"
