"""A few random faults; `python -m tests.faults.monkey` makes as many as one likes."""

import pytest

from tests.faults.monkey import disturb

SPREAD = 53  # Prime, so that few seeds reach all parts of the table.


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(0, 10 * SPREAD, SPREAD))
def test_a_run_survives_a_random_fault(seed, tmp_path):
    disturb(seed, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(0, 3 * SPREAD, SPREAD))
def test_a_run_on_two_hosts_survives_a_random_fault(seed, tmp_path):
    disturb(seed, tmp_path, num_hosts=2)
