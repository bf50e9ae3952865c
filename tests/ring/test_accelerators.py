"""Acting beside and on accelerators, which virtual devices of the processor stand for."""

import jax

from tests.disturbances import know_no_platform
from tests.rings import actor_devices, are_fused, close, make_ring, run_ring
from tests.run.test_modes import CARTPOLE, make_config


def test_auto_steps_from_python_where_an_accelerator_would_wait_inside_jit(monkeypatch):
    know_no_platform(monkeypatch)
    warnings = []
    ring = make_ring(make_config(CARTPOLE), on_warning=warnings.append)
    close(ring)
    assert are_fused(ring) == [False] * 2
    assert warnings == [
        "actor.cycle: auto steps envpool CartPole-v1 from Python, since inside jit cpu would wait"
        " for it"
    ]
    ring = make_ring(make_config(CARTPOLE, cycle="fused"), on_warning=warnings.append)
    close(ring)
    assert are_fused(ring) == [True] * 2 and len(warnings) == 1


def test_the_processor_acts_while_another_device_learns():
    config = make_config(CARTPOLE, actor_devices="cpu", learner_devices=(1,))
    ring = make_ring(config)
    run_ring(ring, mode="threads")
    assert set(actor_devices(ring)) == {jax.devices("cpu")[0]}
    assert list(ring.learner.learner_devices.devices) == [jax.devices()[1]]
    assert ring.progress.env_steps >= config.run.total_env_steps
