"""The default name of a run directory."""

import re

from sebulba.config.loading import load_config
from sebulba.config.naming import default_run_dir


def test_runs_that_start_in_the_same_second_have_directories_of_their_own():
    config = load_config("impala_cartpole")
    names = [default_run_dir(config) for _ in range(20)]
    assert len(set(names)) == 20
    assert all(
        re.fullmatch(r"runs/impala-CartPole-v1-\d{8}-\d{6}-[0-9a-f]{6}", each) for each in names
    )
