"""Averaging gradients over the learner devices, and what it takes."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sebulba.config import LearnerConfig
from sebulba.config.loading import load_config
from sebulba.devices.learner_devices import REPLICATED, LearnerDevices
from sebulba.devices.mapping import shard
from sebulba.learning.all_reduce import AllReduce, AllReduceUse
from sebulba.learning.update import STATE_SPECS, loss_and_gradients
from sebulba.ring.timing import UPDATE, WAIT_FOR_TRAJECTORIES, WallClock
from sebulba.run.assembly import assemble
from sebulba.tools.plan.measuring import for_measuring
from tests.learning.test_learner import make_item, make_learner
from tests.learning.test_progress import make_config
from tests.run.resuming import run_ring
from tests.toys import ToyConfig

NETWORKS = {"kernel": jnp.ones((3, 4)), "bias": jnp.ones(4)}


def measured(*, num_devices=2, cycles=(1,), is_on_cpu=True, **config):
    devices = LearnerDevices(jax.devices()[:num_devices])
    all_reduce = AllReduce(devices, LearnerConfig(**config), WallClock())
    all_reduce._is_on_cpu = is_on_cpu
    for cycle in cycles:
        all_reduce.measure(devices.replicate(NETWORKS), cycle)
    return all_reduce


def test_one_learner_device_has_no_all_reduce():
    all_reduce = measured(num_devices=1)
    assert all_reduce.seconds is None
    assert AllReduceUse(all_reduce).columns(num_cycles=1, num_updates=1) == {}


@pytest.mark.parametrize(
    ("is_on_cpu", "dtype", "num_bytes"),
    # XLA on a CPU sends numbers of 16 bits as float32.
    [(True, "float32", 64), (True, "bfloat16", 64), (False, "bfloat16", 32)],
)
def test_columns_are_those_of_the_updates_of_a_cycle(is_on_cpu, dtype, num_bytes):
    all_reduce = measured(is_on_cpu=is_on_cpu, gradients=dtype)
    assert all_reduce.num_bytes == num_bytes
    use = AllReduceUse(all_reduce)
    use.restart(num_cycles=10, num_updates=100)
    columns = use.columns(num_cycles=12, num_updates=106)
    assert columns["bytes"] == 3 * num_bytes
    assert columns["seconds"] == 3 * all_reduce.seconds > 0
    assert columns["overlap"] == columns["share"] == 0


@pytest.mark.parametrize(("policy_lag", "expected"), [(None, 0.25), (1, 0.25), (0, 0.0)])
def test_acting_hides_an_all_reduce_while_the_learner_waits_for_it(policy_lag, expected):
    all_reduce = measured(policy_lag=policy_lag)
    use = AllReduceUse(all_reduce)
    spent = all_reduce.clock.seconds
    spent |= {
        WAIT_FOR_TRAJECTORIES: 2 * 0.25 * all_reduce.seconds,
        UPDATE: 2 * 4.0 * all_reduce.seconds,
    }
    columns = use.columns(num_cycles=2, num_updates=2)
    assert columns["share"] == pytest.approx(0.25)
    assert columns["overlap"] == pytest.approx(expected)
    spent[WAIT_FOR_TRAJECTORIES] = 1e3
    assert use.columns(num_cycles=2, num_updates=2)["overlap"] == (policy_lag != 0)


def test_an_all_reduce_is_measured_after_the_first_cycle_and_every_hundredth():
    counts = []
    for cycles in ([1], [1, 2, 100], [1, 2, 100, 101, 102]):
        counts.append(len(measured(cycles=cycles)._durations))
    assert counts == [3, 3, 4]


def toy_config(**changes):
    config = make_config(log_interval_env_steps=50, **changes)
    return dataclasses.replace(config, agent=ToyConfig())


def test_rows_and_summary_have_the_columns_on_several_devices():
    ring, rows, _ = run_ring(toy_config(learner_devices=(0, 1)))
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(ring.learner.state.networks))
    assert [row["all_reduce/bytes"] for row in rows[1:]] == [size] * (len(rows) - 1)
    assert ring.progress.all_reduce.keys() == {"bytes", "seconds", "share", "overlap"}
    ring, rows, _ = run_ring(toy_config())
    assert not any(key.startswith("all_reduce/") for row in rows for key in row)
    assert ring.progress.all_reduce == {}


def test_gradients_cross_between_devices_in_their_type():
    learner, devices = make_learner(num_devices=2)
    learner.run_cycle([make_item(devices)])

    def update(state, dtype):
        experience = jax.tree.map(lambda x: x[0], state.experience)
        return loss_and_gradients(learner._agent, state, experience, dtype=dtype)[2]

    means = {}
    for dtype in ("float32", "bfloat16"):
        mapped = jax.jit(
            jax.shard_map(
                lambda state, dtype=dtype: update(state, dtype),
                mesh=devices.mesh,
                in_specs=jax.tree.map(lambda x: x.sharding.spec, (learner.state,)),
                out_specs=jax.sharding.PartitionSpec(),
                check_vma=False,
            )
        )
        assert ("bf16" in str(jax.make_jaxpr(mapped)(learner.state))) == (dtype == "bfloat16")
        means[dtype] = mapped(learner.state)
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
    config = load_config(name, ["--devices.learner", "[0, 1]"])
    ring = assemble(for_measuring(config), write_row=lambda row: None)
    learner = ring.learner
    step = shard(
        learner.update.step,
        learner.learner_devices,
        in_specs=(STATE_SPECS,),
        out_specs=(STATE_SPECS, REPLICATED),
    )
    program = jax.jit(step).lower(learner.state).compile().as_text()
    results = re.findall(r" = (.*) all-reduce\(", program)  # one array, or a tuple of arrays
    assert sum(result.count("[") for result in results) == expected
    ring.close_environments()


def test_the_learner_takes_the_type_from_its_config():
    assert make_learner(gradients="bfloat16")[0].update.gradients == "bfloat16"
    assert dataclasses.replace(LearnerConfig()).gradients == "float32"
