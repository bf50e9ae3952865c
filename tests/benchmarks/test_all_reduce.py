"""The forms of an all-reduce, between two processes."""

import pytest

from benchmarks import all_reduce


@pytest.mark.slow
def test_every_form_is_measured_and_gives_the_same_mean():
    # The processes compare their results.
    milliseconds = all_reduce.measure([(3, 4), (5,), ()], num_hosts=2, repeats=2)
    assert len(milliseconds) == len(all_reduce.FORMS) * len(all_reduce.DTYPES)
    assert all(len(each.values) == 2 and min(each.values) > 0 for each in milliseconds.values())
