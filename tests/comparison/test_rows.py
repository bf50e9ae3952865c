"""Where the rows of two runs part."""

import numpy as np
import pytest

from sebulba.comparison.rows import LeafDifference, compare_checksums, compare_metrics
from sebulba.storage.checksums import ChecksumRow
from sebulba.storage.sketches import leaf_sum

WEIGHTS = np.linspace(-1, 1, 300, dtype=np.float32)


def row(cycle, *, weights=WEIGHTS, action=0, has_trajectories=True, **leaves):
    """Returns a row of networks of two leaves, and a trajectory."""
    arrays = {
        "networks.weights": weights,
        "networks.count": np.array([3]),
        "opt_state.mu": np.zeros(3, np.float32),
    }
    if has_trajectories:
        arrays["trajectories.action"] = np.array([action])
    return ChecksumRow(
        num_cycles=cycle,
        env_steps=10 * cycle,
        leaves={name: leaf_sum([array]) for name, array in {**arrays, **leaves}.items()},
    )


def test_equal_rows_have_no_parting():
    compared = compare_checksums([row(0), row(1), row(2)], [row(0), row(2), row(3)])
    assert [each.num_cycles for each in compared.rows] == [0, 2]
    assert compared.parting is None and compared.last_equal == 2
    assert compared.rows[-1].size == 0.0


def test_the_first_row_that_differs_and_its_largest_leaf_are_found():
    apart = row(2, weights=WEIGHTS * np.float32(1 + 1e-6), **{"opt_state.mu": np.ones(3, "f")})
    compared = compare_checksums([row(1), row(2), row(3)], [row(1), apart, row(3)])
    assert (compared.parting.num_cycles, compared.last_equal) == (2, 1)
    assert [leaf.name for leaf in compared.parting.leaves] == ["opt_state.mu", "networks.weights"]
    (weights,) = compared.parting.of("networks")
    assert weights.size == pytest.approx(1e-6, rel=0.9)
    assert compared.parting.size == pytest.approx(1e-6, rel=0.9), "without the optimizer"
    assert compared.parting.num_leaves == 4
    assert not compared.parting.has_other_integers


CHANGED = WEIGHTS + np.float32(0.1)


@pytest.mark.parametrize(
    ("last", "cycle", "changes", "first"),
    [
        (9, 10, {"weights": CHANGED}, "updates"),
        (10, 100, {"weights": CHANGED}, "updates"),
        (9, 10, {"action": 1}, "trajectories"),
        (10, 100, {"action": 1}, "trajectories"),
        (9, 10, {"weights": CHANGED, "action": 1}, "trajectories"),
        (10, 100, {"weights": CHANGED, "action": 1}, "unknown"),
        (9, 10, {"weights": CHANGED, "has_trajectories": False}, "unknown"),
    ],
)
def test_what_parted_first_is_told_where_it_is_known(last, cycle, changes, first):
    compared = compare_checksums([row(last), row(cycle)], [row(last), row(cycle, **changes)])
    assert compared.parted_first == first


def test_networks_that_differ_before_the_first_cycle_are_the_start():
    other = row(0, weights=CHANGED, has_trajectories=False)
    compared = compare_checksums([row(0, has_trajectories=False), row(1)], [other, row(1)])
    assert compared.parted_first == "start"


def test_another_integer_and_a_leaf_that_one_run_lacks_are_no_rounding():
    for changes in ({"action": 1}, {"networks.count": np.array([4])}, {"networks.new": WEIGHTS}):
        compared = compare_checksums([row(1)], [row(1, **changes)])
        assert compared.parting.has_other_integers
        assert compared.parting.leaves[0].size is None


def test_rows_of_metrics_are_compared_without_times_and_without_evaluations():
    rows = [{"env_steps": 100, "updates": 1, "loss": 0.5, "wall_time_s": 1.0, "time/actor/act": 1}]
    rows += [{"env_steps": 200, "updates": 2, "loss": 0.25, "wall_time_s": 2.0}]
    rows[0] |= {"remote_actor/0/restarts": 0, "remote_actor/0/steps_per_second": 8.0}
    slower = [{**each, "wall_time_s": 9.0, "time/actor/act": 0.5} for each in rows]
    slower[0] |= {"remote_actor/0/restarts": 1, "remote_actor/0/steps_per_second": 4.0}
    evaluation = {"env_steps": 100, "updates": 1, "loss": None, "evaluation/return_mean": 3.0}
    slower.insert(1, evaluation)
    assert compare_metrics(rows, slower) == (2, None)
    slower[-1]["loss"] = 0.26
    num_equal, found = compare_metrics(rows, slower)
    assert (num_equal, str(found)) == (1, "loss at 200 env steps: 0.25 and 0.26")
    assert compare_metrics(rows, []) == (0, None)


def test_rows_of_metrics_that_are_of_other_times_are_not_compared():
    """After a resume, or with another log interval: the row before it is another one."""
    rows = [{"env_steps": at, "policy_lag/1": 10} for at in (100, 200, 300)]
    others = [{"env_steps": 100, "policy_lag/1": 10}, {"env_steps": 150, "policy_lag/1": 4}]
    others += [{"env_steps": 200, "policy_lag/1": 6}, {"env_steps": 300, "policy_lag/1": 10}]
    assert compare_metrics(rows, others) == (2, None)


def test_a_leaf_whose_bits_alone_differ_says_so():
    leaf = LeafDifference(name="networks.a", size=0.0)
    assert str(leaf).startswith("networks.a, whose norm and projections are equal, as with 0.0 and")


def test_zeros_of_another_shape_are_not_the_largest_difference():
    other = row(1, weights=2 * WEIGHTS, **{"opt_state.mu": np.zeros(2, "f")})
    (compared,) = compare_checksums([row(1)], [other]).rows
    assert [leaf.name for leaf in compared.leaves] == ["networks.weights", "opt_state.mu"]
    assert str(compared.leaves[1]).endswith("or with zeros of another shape")
