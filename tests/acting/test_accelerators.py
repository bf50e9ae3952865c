"""Acting beside and on accelerators, which virtual devices of the processor stand for."""

import dataclasses

import jax
import numpy as np
import pytest

from sebulba.acting import environment_factory
from sebulba.acting.fused_cycle import FusedCycle
from sebulba.acting.stepped_cycle import SteppedCycle
from sebulba.envs.envpool import EnvPoolEnvironment
from sebulba.run.assembly import assemble
from sebulba.run.modes import run
from tests.run.test_modes import CARTPOLE, make_config


def make_ring(warnings, actor_devices=(0,), learner_devices=(0,)):
    config = make_config(CARTPOLE, actor_devices=actor_devices, learner_devices=learner_devices)
    return assemble(config, write_row=lambda row: None, on_warning=warnings.append)


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
    monkeypatch.setattr(environment_factory, "_PLATFORMS_OF_FUSED", ())
    if not has_kernel:
        without_kernel(monkeypatch)
    warnings = []
    ring = make_ring(warnings)
    ring.close_environments()
    kind = FusedCycle if has_kernel else SteppedCycle
    assert len(ring.actors) == 2 and all(type(a.act_cycle) is kind for a in ring.actors)
    assert len(warnings) == (0 if has_kernel else 1)
    if not has_kernel:
        expected = "actor.cycle: auto steps envpool CartPole-v1 from Python, since it cannot be"
        assert warnings[0].startswith(expected) and "no_such_function" in warnings[0]


def test_the_processor_acts_while_another_device_learns():
    ring = make_ring([], actor_devices="cpu", learner_devices=(1,))
    try:
        run(ring, mode="threads")
    finally:
        ring.close_environments()
    assert set(ring.actor_devices) == {jax.devices("cpu")[0]}
    assert list(ring.learner.learner_devices.devices) == [jax.devices()[1]]
    assert ring.progress.env_steps >= ring.config.run.total_env_steps
