"""Averaging gradients over the learner devices, and what it takes."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sebulba.config.loading import load_config
from tests.ring.test_learner import make_item, make_learner
from tests.ring.test_progress import make_config
from tests.ring_parts import (
    all_reduce_columns,
    mean_gradients,
    measure_all_reduces,
    num_measurements,
    update,
    update_step,
)
from tests.rings import all_reduce_of_run, close, make_ring, run_config
from tests.toys import ToyConfig

NETWORKS = {"kernel": np.ones((3, 4), np.float32), "bias": np.ones(4, np.float32)}


def test_one_learner_device_has_no_all_reduce():
    all_reduce = measure_all_reduces(NETWORKS, num_devices=1)
    assert all_reduce.seconds is None
    assert all_reduce_columns(all_reduce, now=(1, 1)) == {}


@pytest.mark.parametrize(
    ("is_on_cpu", "dtype", "num_bytes"),
    # XLA on a CPU sends numbers of 16 bits as float32.
    [(True, "float32", 64), (True, "bfloat16", 64), (False, "bfloat16", 32)],
)
def test_columns_are_those_of_the_updates_of_a_cycle(is_on_cpu, dtype, num_bytes):
    all_reduce = measure_all_reduces(NETWORKS, is_on_cpu=is_on_cpu, gradients=dtype)
    assert all_reduce.num_bytes == num_bytes
    columns = all_reduce_columns(all_reduce, since=(10, 100), now=(12, 106))
    assert columns["bytes"] == 3 * num_bytes
    assert columns["seconds"] == 3 * all_reduce.seconds > 0
    assert columns["overlap"] == columns["share"] == 0


@pytest.mark.parametrize(("policy_lag", "expected"), [(None, 0.25), (1, 0.25), (0, 0.0)])
def test_acting_hides_an_all_reduce_while_the_learner_waits_for_it(policy_lag, expected):
    all_reduce = measure_all_reduces(NETWORKS, policy_lag=policy_lag)

    def columns(waited_s):
        update_s = 2 * 4.0 * all_reduce.seconds
        return all_reduce_columns(all_reduce, now=(2, 2), update_s=update_s, waited_s=waited_s)

    briefly = columns(2 * 0.25 * all_reduce.seconds)
    assert briefly["share"] == pytest.approx(0.25)
    assert briefly["overlap"] == pytest.approx(expected)
    assert columns(1e3)["overlap"] == (policy_lag != 0)


def test_an_all_reduce_is_measured_after_the_first_cycle_and_every_hundredth():
    counts = []
    for cycles in ([1], [1, 2, 100], [1, 2, 100, 101, 102]):
        counts.append(num_measurements(measure_all_reduces(NETWORKS, cycles=cycles)))
    assert counts == [3, 3, 4]


def toy_config(**changes):
    config = make_config(log_interval_env_steps=50, **changes)
    return dataclasses.replace(config, agent=ToyConfig())


def test_rows_and_summary_have_the_columns_on_several_devices():
    ring, rows, _ = run_config(toy_config(learner_devices=(0, 1)))
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(ring.learner.state.networks))
    assert [row["all_reduce/bytes"] for row in rows[1:]] == [size] * (len(rows) - 1)
    assert all_reduce_of_run(ring).keys() == {"bytes", "seconds", "share", "overlap"}
    ring, rows, _ = run_config(toy_config())
    assert not any(key.startswith("all_reduce/") for row in rows for key in row)
    assert all_reduce_of_run(ring) == {}


def test_gradients_cross_between_devices_in_their_type():
    learner, devices = make_learner(num_devices=2)
    update(learner, [make_item(devices)])
    means = {}
    for dtype in ("float32", "bfloat16"):
        gradients = jax.jit(mean_gradients(learner, dtype))
        assert ("bf16" in str(jax.make_jaxpr(gradients)(learner.state))) == (dtype == "bfloat16")
        means[dtype] = gradients(learner.state)
    assert {leaf.dtype for leaf in jax.tree.leaves(means)} == {jnp.dtype("float32")}
    exact, rounded = (jax.device_get(jax.tree.leaves(mean)) for mean in means.values())
    for one, other in zip(exact, rounded, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("impala_bandit", 2), pytest.param("ppo_bandit", 4, marks=pytest.mark.slow)],
)
def test_an_update_sends_few_messages(name, expected):
    """Valid transitions and the buffer of gradients; PPO's moments of advantages are two more."""
    config = load_config(name, ["--devices.learner", "[0, 1]", "--actor.threads-per-device", "1"])
    ring = make_ring(config)
    program = jax.jit(update_step(ring.learner)).lower(ring.learner.state).compile().as_text()
    results = re.findall(r" = (.*) all-reduce\(", program)  # one array, or a tuple of arrays
    assert sum(result.count("[") for result in results) == expected
    close(ring)


def test_the_learner_takes_the_type_from_its_config():
    for settings, is_rounded in (({"gradients": "bfloat16"}, True), ({}, False)):
        learner, _ = make_learner(num_devices=2, **settings)
        jaxpr = jax.make_jaxpr(update_step(learner))(learner.state)
        assert ("bf16" in str(jaxpr)) == is_rounded
