"""Device roles, and placing arrays on the learner devices."""

import jax
import numpy as np
import pytest

from sebulba.config import DevicesConfig
from sebulba.config.loading import load_config
from sebulba.devices.learner_devices import LearnerDevices, fetch_replicated
from sebulba.devices.roles import pick_devices
from sebulba.errors import ConfigError


def positions(roles, devices):
    return tuple([devices.index(device) for device in role] for role in roles)


def test_the_only_device_has_both_roles():
    devices = jax.devices()[:1]
    assert positions(pick_devices(DevicesConfig(), devices, num_envs=12), devices) == ([0], [0])


def test_the_first_of_several_devices_acts_and_the_others_learn():
    devices = jax.devices()[:4]
    assert positions(pick_devices(DevicesConfig(), devices, num_envs=12), devices) == (
        [0],
        [1, 2, 3],
    )


@pytest.mark.parametrize(("num_envs", "learner"), [(16, [1, 2]), (9, [1, 2, 3]), (7, [1])])
def test_as_many_of_the_others_learn_as_divide_the_environments(num_envs, learner):
    devices = jax.devices()[:4]
    picked = pick_devices(DevicesConfig(), devices, num_envs=num_envs)
    assert positions(picked, devices) == ([0], learner)


def test_the_config_can_assign_any_roles():
    devices = jax.devices()[:4]
    config = DevicesConfig(actor=(0, 1, 2), learner=(2, 3))
    assert positions(pick_devices(config, devices, num_envs=12), devices) == ([0, 1, 2], [2, 3])


def test_the_processor_can_act_for_all_accelerators():
    accelerators = [object(), object()]
    config = load_config("impala_cartpole", ["--devices.actor", "cpu"]).devices
    assert config == DevicesConfig(actor="cpu")
    assert pick_devices(config, accelerators, num_envs=12) == (
        (jax.devices("cpu")[0],),
        tuple(accelerators),
    )
    _, learner = pick_devices(DevicesConfig(actor="cpu", learner=(1,)), accelerators, num_envs=12)
    assert learner == (accelerators[1],)


def test_a_processor_that_jax_has_no_device_for_is_an_error(monkeypatch):
    def local_devices(backend):
        raise RuntimeError(f"Unknown backend {backend}")

    monkeypatch.setattr(jax, "local_devices", local_devices)
    with pytest.raises(ConfigError, match=r"devices.actor: .*JAX_PLATFORMS=cuda,cpu"):
        pick_devices(DevicesConfig(actor="cpu"), [object()], num_envs=12)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (DevicesConfig(actor=(4,)), "devices.actor: expected positions among .* got 4"),
        (DevicesConfig(learner=(0, 0)), "devices.learner: expected each device once"),
        (DevicesConfig(learner=()), "devices.learner: expected at least one device"),
    ],
)
def test_missing_and_repeated_devices_are_named(config, message):
    with pytest.raises(ConfigError, match=message):
        pick_devices(config, jax.devices()[:4], num_envs=12)


def test_split_gives_each_device_its_environments():
    learner_devices = LearnerDevices(jax.devices()[:4])
    placed = learner_devices.split(np.arange(16).reshape(2, 8), axis=1)
    for index, shard in enumerate(placed.addressable_shards):
        np.testing.assert_array_equal(
            shard.data, np.arange(16).reshape(2, 8)[:, 2 * index : 2 * index + 2]
        )


def test_arrays_on_the_only_learner_device_stay_as_they_are():
    device, other = jax.devices()[1:3]
    learner_devices = LearnerDevices([device])
    there = jax.device_put(np.arange(4, dtype=np.float32), device)
    assert learner_devices.split(there) is there
    assert learner_devices.replicate(there) is there
    assert fetch_replicated(there, device) is there
    for elsewhere in (np.asarray(there), jax.device_put(there, other)):
        placed = learner_devices.split({"there": there, "elsewhere": elsewhere})
        assert placed["elsewhere"].devices() == {device}
        np.testing.assert_array_equal(placed["elsewhere"], there)


def test_fetch_replicated_takes_the_devices_own_copy():
    learner_devices = LearnerDevices(jax.devices()[:2])
    placed = learner_devices.replicate(np.arange(3.0, dtype=np.float32))
    own, other = jax.devices()[1], jax.devices()[3]
    fetched = fetch_replicated(placed, own)
    assert fetched.devices() == {own}
    shard = placed.addressable_shards[1].data
    assert fetched.unsafe_buffer_pointer() == shard.unsafe_buffer_pointer()
    assert fetch_replicated(placed, other).devices() == {other}
