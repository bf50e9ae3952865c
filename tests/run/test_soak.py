"""Many learner cycles: memory, threads, open files and compilations do not grow."""

import dataclasses
import os
import pathlib
import re

import jax
import pytest

from sebulba.config.loading import load_config
from tests.rings import Observer, close, make_ring, run

pytestmark = pytest.mark.slow

CYCLES = 10_000
MAX_GROWTH_MB = 5.0


def resources(compilations):
    """Returns the resident megabytes, and the threads, open files and compilations."""
    status = pathlib.Path("/proc/self/status").read_text()
    (resident,) = re.findall(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE)
    (threads,) = re.findall(r"^Threads:\s+(\d+)", status, re.MULTILINE)
    return int(resident) / 1e3, (int(threads), len(os.listdir("/proc/self/fd")), compilations)


def test_ten_thousand_learner_cycles_leave_nothing_behind():
    config = load_config("impala_cartpole")
    env_steps = CYCLES * config.actor.num_envs * config.actor.trajectory_length
    config = dataclasses.replace(
        config,
        run=dataclasses.replace(config.run, total_env_steps=env_steps, stop_at_return=None),
    )
    compilations, samples = [], {}

    def count(event, duration_secs, **kwargs):
        if event == "/jax/core/compile/backend_compile_duration":
            compilations.append(event)

    class Sampling(Observer):
        def on_cycle(self, report):
            if report.num_cycles in (CYCLES // 10, 9 * CYCLES // 10):
                samples[report.num_cycles] = resources(len(compilations))

    jax.monitoring.register_event_duration_secs_listener(count)
    ring = make_ring(config)
    try:
        run(ring, mode="threads", observers=[Sampling()])
    finally:
        jax.monitoring.unregister_event_duration_listener(count)
        close(ring)
    (resident, others), (resident_after, others_after) = samples.values()
    assert others_after == others
    assert resident_after - resident < MAX_GROWTH_MB
