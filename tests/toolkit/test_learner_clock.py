"""The learner's clock: env steps of earlier learner cycles, over all learner devices."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from sebulba.devices.learner_devices import REPLICATED, LearnerDevices
from sebulba.devices.mapping import map_over_learner_devices
from sebulba.toolkit.learner_clock import count_env_steps, init_clock


def test_env_steps_are_those_of_earlier_cycles():
    clock, seen = init_clock(), []
    for num_valid in (6, 5, 4, 3, 2, 1):
        valid = jnp.arange(6).reshape(3, 2) < num_valid
        clock = count_env_steps(clock, valid, trajectories_per_cycle=2)
        seen.append(float(clock.env_steps))
    # A cycle's first trajectory adds the cycle before.
    assert seen == [0, 0, 11, 11, 18, 18]


def test_env_steps_beyond_32_bits_are_counted():
    clock = dataclasses.replace(
        init_clock(),
        env_steps_low=jnp.uint32(2**32 - 3),
        cycle_env_steps=jnp.uint32(5),
        num_trajectories=jnp.int32(1),
    )
    clock = count_env_steps(clock, jnp.ones((1, 1), bool), trajectories_per_cycle=1)
    assert (int(clock.env_steps_high), int(clock.env_steps_low)) == (1, 2)
    assert float(clock.env_steps) == 2.0**32


def test_every_learner_device_counts_the_env_steps_of_all():
    learners = LearnerDevices(jax.devices()[:4])

    def on_device(clock, valid):
        return count_env_steps(clock, valid[0], trajectories_per_cycle=1)

    mapped = map_over_learner_devices(on_device, learners, out_specs=REPLICATED)
    valid = jnp.arange(4 * 6).reshape(4, 3, 2) % 5 > 0
    clock = learners.replicate(init_clock())
    for _ in range(3):
        clock = mapped(clock, learners.split(valid))
    assert float(clock.env_steps) == 2 * np.count_nonzero(valid)
