"""Exploration by a schedule, in runs of any length."""

import jax
import jax.numpy as jnp
import numpy as np

from sebulba.toolkit.exploration import ScheduledExploration
from sebulba.toolkit.schedules import Schedule
from tests.streams import random_env_steps
from tests.toys import toy_run_spec


def test_a_count_of_env_steps_beyond_int32_stays_at_the_end_of_its_schedule():
    slope = Schedule(schedule="linear", start=1.0, end=0.25)
    exploration = ScheduledExploration(
        toy_run_spec(num_actors=1, total_env_steps=2**40), epsilon=slope, evaluation_epsilon=0.0
    )
    state = exploration.init(4, jax.random.key(0), 0)
    np.testing.assert_array_equal(exploration.epsilon(state), [1.0] * 4)
    state = exploration.advance(state, 2**50)
    row = jax.tree.map(lambda x: x[0], random_env_steps(0, 1, 4, done_probability=0.0))
    act = jax.jit(lambda state: exploration.act(state, jnp.zeros((4, 2)), row, greedy=False)[1])
    for _ in range(3):
        state = act(state)
    assert (np.asarray(state.env_steps) > 2**31 - 3).all()
    short = ScheduledExploration(
        toy_run_spec(num_actors=1, total_env_steps=2**20), epsilon=slope, evaluation_epsilon=0.0
    )
    np.testing.assert_array_equal(short.epsilon(state), [0.25] * 4)
