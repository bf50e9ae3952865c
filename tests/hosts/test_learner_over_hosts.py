"""A learner on two hosts with two devices each equals one on a host with four."""

import contextlib

import jax
import numpy as np
import pytest

from sebulba.devices.learner_devices import LearnerDevices
from tests.hosts import processes
from tests.ring_parts import make_learner, placed_item, published, update
from tests.toys import ToyAgent, ToyConfig, ToyState, toy_run_spec, toy_trajectory

NUM_ENVS = 8
NUM_HOSTS = 2
NUM_CYCLES = 3


def share_of(tree, host, axis):
    """Return a host's half of the environments, or all of them."""
    if host is None:
        return tree
    half = NUM_ENVS // NUM_HOSTS
    index = (slice(None),) * axis + (slice(host * half, (host + 1) * half),)
    return jax.tree.map(lambda leaf: leaf[index], tree)


def learn(learner_devices, *, host=None):
    """Run three learner cycles on fixed data, or on one host's half of it."""
    num_devices = len(learner_devices.devices)
    num_envs = NUM_ENVS if host is None else NUM_ENVS // NUM_HOSTS
    run_spec = toy_run_spec(num_envs=num_envs, num_learner_devices=num_devices)
    agent = ToyAgent(ToyConfig(updates_per_cycle=2), run_spec)
    learner = make_learner(agent, learner_devices, num_envs=num_envs, seed=1)
    metrics = []
    for cycle in range(NUM_CYCLES):
        trajectory = toy_trajectory(toy_run_spec(), NUM_ENVS, seed=cycle)
        count = np.arange(NUM_ENVS, dtype=np.int32)
        state = ToyState(key=jax.random.key(0), count=share_of(count, host, 0))
        part = share_of(trajectory, host, 1)
        item = placed_item(agent, learner_devices, state, part, sequence_number=cycle)
        metrics += update(learner, [item])
    return learner, jax.device_get(metrics)


@pytest.fixture(scope="module")
def results_of_hosts(tmp_path_factory):
    """The results of two processes."""
    port, directory = processes.free_port(), tmp_path_factory.mktemp("learners")
    with contextlib.ExitStack() as stack:
        started = []
        for host in range(NUM_HOSTS):
            arguments = (port, host, directory / f"{host}.npz")
            process = processes.start(["-m", "tests.hosts.learn_together", *arguments])
            started.append(stack.enter_context(process))
        for process in started:
            code, output = processes.end_of(process)
            assert code == 0, output
    return [dict(np.load(directory / f"{host}.npz")) for host in range(NUM_HOSTS)]


@pytest.fixture(scope="module")
def result_of_one_process():
    """The result of one process with as many devices and the same data."""
    return learn(LearnerDevices(jax.devices()[:4]))


def test_two_hosts_compute_the_update_of_one_with_as_many_devices(
    results_of_hosts, result_of_one_process
):
    learner, metrics = result_of_one_process
    for result in results_of_hosts:
        np.testing.assert_allclose(
            result["weights"], published(learner)["weights"], rtol=1e-5, atol=1e-6
        )
        for name in ("loss", "reward_sum"):
            expected = np.concatenate([update[name] for update in metrics])
            np.testing.assert_allclose(result[name], expected, rtol=1e-5, atol=1e-5)


def test_all_hosts_have_the_same_bits(results_of_hosts):
    first, second = results_of_hosts
    np.testing.assert_array_equal(first["weights"], second["weights"])
    np.testing.assert_array_equal(first["loss"], second["loss"])


def test_each_hosts_experience_is_its_own(results_of_hosts):
    counts = [result["final_count"].reshape(-1).tolist() for result in results_of_hosts]
    assert counts == [[0, 1, 2, 3], [4, 5, 6, 7]]
