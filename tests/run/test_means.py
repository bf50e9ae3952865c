"""Means of metrics between two rows."""

import json

import jax.numpy as jnp
import pytest

from sebulba.run.means import MetricMeans


def updates(*values):
    return [{"loss": jnp.float32(value)} for value in values]


def test_means_are_over_the_updates_that_have_the_metric():
    means = MetricMeans()
    means.add([{"loss": jnp.float32(1.0), "rare": jnp.float32(7.0)}, {"loss": jnp.float32(2.0)}])
    assert means.take() == {"loss": 1.5, "rare": 7.0}
    assert means.take() == {}, "`take` resets the means"


def test_means_do_not_depend_on_when_metrics_are_fetched():
    values = [0.1 * number for number in range(200)]
    at_once, one_by_one = MetricMeans(), MetricMeans()
    at_once.add(updates(*values))
    for value in values:
        one_by_one.add(updates(value))
        one_by_one.state()
    assert at_once.take() == one_by_one.take()


def test_means_hold_a_bounded_number_of_device_arrays():
    means = MetricMeans()
    for _ in range(500):
        means.add(updates(1.0))
    assert len(means._pending) < 64
    assert means.take() == {"loss": 1.0}


def test_restored_means_continue_bitwise_after_json():
    means, restored = MetricMeans(), MetricMeans()
    means.add(updates(0.1, 0.2, 0.3))
    restored.restore(json.loads(json.dumps(means.state())))
    for each in (means, restored):
        each.add(updates(0.7))
    assert means.take() == restored.take() == {"loss": pytest.approx(0.325)}
