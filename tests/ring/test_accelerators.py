"""Acting beside and on accelerators, which virtual devices of the processor stand for."""

import dataclasses

import jax
import numpy as np
import pytest

from sebulba.envs.envpool import EnvPoolEnvironment
from tests.rings import actor_devices, are_fused, close, know_no_platform, make_ring, run_ring
from tests.run.test_modes import CARTPOLE, make_config


def without_kernel(monkeypatch):
    """Give EnvPool a step that calls a function which no platform has."""
    fused = EnvPoolEnvironment.fused

    def changed(self):
        sound = fused(self)

        def step(state, action):
            shape = jax.ShapeDtypeStruct(action.shape, np.int32)
            return sound.step(state, jax.ffi.ffi_call("no_such_function", shape)(action))

        return dataclasses.replace(sound, step=step)

    monkeypatch.setattr(EnvPoolEnvironment, "fused", changed)


@pytest.mark.parametrize("has_kernel", [True, False])
def test_auto_steps_from_python_where_the_platform_has_no_kernel(has_kernel, monkeypatch):
    know_no_platform(monkeypatch)
    if not has_kernel:
        without_kernel(monkeypatch)
    warnings = []
    ring = make_ring(make_config(CARTPOLE), on_warning=warnings.append)
    close(ring)
    assert are_fused(ring) == [has_kernel] * 2
    assert len(warnings) == (0 if has_kernel else 1)
    if not has_kernel:
        expected = "actor.cycle: auto steps envpool CartPole-v1 from Python, since it cannot be"
        assert warnings[0].startswith(expected) and "no_such_function" in warnings[0]


def test_the_processor_acts_while_another_device_learns():
    config = make_config(CARTPOLE, actor_devices="cpu", learner_devices=(1,))
    ring = make_ring(config)
    run_ring(ring, mode="threads")
    assert set(actor_devices(ring)) == {jax.devices("cpu")[0]}
    assert list(ring.learner.learner_devices.devices) == [jax.devices()[1]]
    assert ring.progress.env_steps >= config.run.total_env_steps
