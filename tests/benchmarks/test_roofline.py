"""The benchmark that holds least times against times on this CPU."""

import pytest

from benchmarks.roofline import measure


@pytest.mark.slow
def test_every_program_of_a_run_is_called_and_has_a_ratio():
    result = measure("impala_bandit", repeats=1)
    assert set(result.ratios) == {"act cycle", "update"}
    assert all(each.median > 0.0 for each in result.ratios.values())
    assert result.settings["update"]["flops"] > 0.0
