"""The benchmark of search: both kinds of work do the searches that they report."""

import dataclasses

import jax
import pytest

from sebulba.config.loading import load_config
from tests.extras import needs_search


@pytest.mark.slow
@needs_search
def test_act_cycles_and_bare_searches_are_measured():
    from benchmarks.search import measure

    config = load_config("configs/gumbel_muzero_catch.yaml", [])
    config = dataclasses.replace(
        config, actor=dataclasses.replace(config.actor, num_envs=2, trajectory_length=3)
    )
    # mctx mixes dtypes, and the benchmark calls it as its users do.
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        result = measure(config, [2, 4], num_cycles=1, repeats=1)
    assert len(result.rates) == 6 and len(result.ratios) == 4
    assert all(series.median > 0.0 for series in result.rates.values())
