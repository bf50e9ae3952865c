"""The benchmark of cores: every core of the table is measured, with its variants."""

import pytest

from benchmarks.cores import measure, with_variants
from sebulba.references import CORES


@pytest.mark.slow
def test_steps_unrolls_and_gradients_of_every_core_are_measured():
    cores = with_variants(list(CORES), 8)
    assert {settings.core for settings in cores.values()} == set(CORES)
    for num_rows, num_kinds in ((1, 1), (3, 2)):
        result = measure(cores, num_rows=num_rows, num_envs=2, num_times=1, repeats=1)
        assert len(result.microseconds) == num_kinds * len(cores)
        assert all(series.median > 0.0 for series in result.microseconds.values())
