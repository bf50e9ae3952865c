"""The interquartile mean and its bootstrap interval, against hand-computed numbers and SciPy."""

import numpy as np
import pytest

from sebulba.evaluation.statistics import (
    EpisodeRecord,
    bootstrap_interval,
    interquartile_mean,
    mean,
    summarize,
)


def records(*returns):
    return [
        EpisodeRecord(episode_return=each, episode_length=10 * i) for i, each in enumerate(returns)
    ]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([70.0, 0.0, 0.0, 60.0, 2.0, 5.0, 3.0, 4.0], 3.5),  # of 2, 3, 4, 5
        ([1.0, 2.0, 3.0, 4.0, 100.0], 3.0),  # of 2, 3, 4
        ([1.0, 2.0, 6.0], 3.0),  # of all: a quarter of 3 values rounds down to 0
        ([5.0], 5.0),
    ],
)
def test_interquartile_mean_is_the_mean_of_the_middle_half(values, expected):
    assert interquartile_mean(np.array(values)) == expected


@pytest.mark.parametrize("n", [4, 9, 30, 101])
def test_interquartile_mean_is_the_trimmed_mean_of_scipy(n):
    import scipy.stats  # takes long, which not every worker of pytest should pay

    values = np.random.default_rng(n).normal(size=(3, n))
    expected = scipy.stats.trim_mean(values, 0.25, axis=-1)
    np.testing.assert_allclose(interquartile_mean(values), expected, rtol=1e-12)


def test_bootstrap_interval_has_the_width_of_the_normal_approximation():
    # The 25 % trimmed mean of n standard normal values has a variance of about 1.19 / n.
    values = np.random.default_rng(0).normal(size=400)
    low, high = bootstrap_interval(values, seed=1)
    assert low < interquartile_mean(values) < high
    assert high - low == pytest.approx(2 * 1.96 * np.sqrt(1.19 / 400), rel=0.15)


def test_bootstrap_interval_depends_only_on_values_and_seed():
    values = np.random.default_rng(0).normal(size=20)
    assert bootstrap_interval(values, seed=1) == bootstrap_interval(values, seed=1)
    assert bootstrap_interval(values, seed=1) != bootstrap_interval(values, seed=2)


def test_bootstrap_intervals_of_a_matrix_are_those_of_its_rows():
    values = np.random.default_rng(0).normal(size=(4, 5))
    rows = [bootstrap_interval(row, seed=1) for row in values]
    np.testing.assert_allclose(np.transpose(bootstrap_interval(values, seed=1)), rows)


def test_bootstrap_interval_of_the_mean_has_the_width_of_the_normal_approximation():
    values = np.random.default_rng(0).normal(size=400)
    low, high = bootstrap_interval(values, seed=1, statistic=mean)
    assert low < values.mean() < high
    assert high - low == pytest.approx(2 * 1.96 / np.sqrt(400), rel=0.15)


def test_summary_has_the_hand_computed_statistics():
    summary = summarize(records(1.0, 2.0, 3.0, 4.0, 100.0), seed=0)
    assert summary["episodes"] == 5
    assert summary["return_mean"] == 22.0
    assert summary["return_std"] == pytest.approx(np.sqrt(7610 / 4))
    assert (summary["return_min"], summary["return_max"]) == (1.0, 100.0)
    assert summary["return_iqm"] == 3.0
    assert summary["return_iqm_low"] <= 3.0 <= summary["return_iqm_high"]
    assert summary["length_mean"] == 20.0


def test_summary_of_too_few_episodes_has_none_values():
    assert summarize(records(2.0), seed=0)["return_std"] is None
    none = summarize([], seed=0)
    assert none["episodes"] == 0
    assert none["return_mean"] is None
    assert set(none) == set(summarize(records(2.0), seed=0))
