"""A few random ends of runs; `python -m tests.faults.random_endings` makes as many as one likes."""

import signal

import pytest

from tests.faults.random_endings import SWEPT, faults_of_interruption, judged, swept

SPREAD = 53  # Prime, so that few seeds reach all parts of the tables.


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(0, 6 * SPREAD, SPREAD))
def test_a_run_ends_as_its_cause_says(seed, tmp_path):
    plan, end, faults = judged(seed, tmp_path)
    assert faults == [], f"{plan}\n{end.stderr}"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("seconds", [0.2, 1.2, 2.2])
@pytest.mark.parametrize("name", SWEPT)
def test_a_signal_at_any_moment_of_a_start_is_told_in_one_line(name, seconds, number, tmp_path):
    if name == "anakin":
        pytest.importorskip("gymnax")
    end = swept(name, seconds, number, tmp_path)
    assert faults_of_interruption(end, seconds, number) == [], end.stderr
