"""What a run counts, and when it has reached its goal."""

import dataclasses
import itertools

import jax
import numpy as np
import pytest

from sebulba.config import ActorConfig, Config, DevicesConfig, EnvConfig, LearnerConfig, RunConfig
from sebulba.toolkit.schedules import Schedule
from sebulba_agents.config import A2CConfig
from tests.ring_parts import make_episodes
from tests.rings import (
    close,
    finish_episodes,
    has_reached_goal,
    make_ring,
    run_config,
    run_ring,
    set_time,
)

pytestmark = pytest.mark.usefixtures("no_thread_is_left")


def make_config(*, learner_devices=(0,), **run):
    """Return a run on a bandit, of whose rows every second one is a reset."""
    rate = Schedule(schedule="linear", start=1e-2, end=0.0)
    return Config(
        env=EnvConfig(suite="jax", id="Bandit-v0"),
        devices=DevicesConfig(actor=(0,), learner=learner_devices),
        actor=ActorConfig(threads_per_device=2, num_envs=4, trajectory_length=6),
        learner=LearnerConfig(policy_lag=0, trajectories_per_cycle=2),
        run=RunConfig(**{"total_env_steps": 200} | run),
        agent=A2CConfig(hidden_sizes=(8,), learning_rate=rate),
    )


@pytest.mark.parametrize("returned, is_reached", [(0.0, True), (-0.1, False)])
def test_a_mean_return_of_exactly_zero_reaches_a_goal_of_zero(returned, is_reached):
    ring = make_ring(make_config(stop_at_return=0.0))
    finish_episodes(ring, make_episodes([returned] * 100))
    close(ring)
    assert has_reached_goal(ring) == is_reached


def test_the_speed_ends_with_the_last_learner_cycle():
    """An evaluation or a save at the end of the run costs no speed."""
    ring, seconds = make_ring(make_config()), itertools.count()
    set_time(ring, lambda: float(next(seconds)))
    run_ring(ring, mode="serial")
    speed = ring.progress.steps_per_second
    for _ in range(1000):
        next(seconds)
    assert ring.progress.steps_per_second == speed > 0


def test_the_speed_of_a_row_is_that_since_the_row_before_without_start_up():
    """The clock shows the square of the learner cycles, and the second actor starts in the second.

    So each cycle takes longer than the last, and the run has started up after two of them.
    """
    learner = LearnerConfig(policy_lag=1, trajectories_per_cycle=1)
    ring = make_ring(dataclasses.replace(make_config(), learner=learner))
    set_time(ring, lambda: float(ring.learner.num_cycles**2))
    rows = run_ring(ring, mode="serial", interval=1)
    num_cycles, per_cycle = len(rows), rows[0]["env_steps"]
    assert [row["env_steps"] for row in rows] == [n * per_cycle for n in range(1, num_cycles + 1)]
    seconds = [n**2 - (n - 1) ** 2 for n in range(3, num_cycles + 1)]
    speeds = [row["steps_per_second"] for row in rows]
    assert speeds == [None, None, *(per_cycle / each for each in seconds)]
    assert ring.progress.steps_per_second == per_cycle * (num_cycles - 2) / (num_cycles**2 - 4)


@pytest.mark.parametrize("learner_devices", [pytest.param((0,), marks=pytest.mark.slow), (0, 1)])
def test_the_learning_rate_falls_with_env_steps_and_not_with_rows(learner_devices):
    config = make_config(learner_devices=learner_devices)
    ring, _, _ = run_config(config)
    assert ring.progress.env_steps >= 200
    # 48 rows a cycle: after 5 of 9 cycles all rows together are more than the env steps wanted.
    cycles = ring.learner.num_cycles
    assert cycles * 48 > 1.5 * ring.progress.env_steps
    before, _, _ = run_config(config, stop_at_cycle=cycles - 1)
    moved = jax.tree.map(
        lambda x, y: np.abs(np.asarray(x) - np.asarray(y)).max(),
        ring.learner.state.networks.params,
        before.learner.state.networks.params,
    )
    assert max(jax.tree.leaves(moved)) > 1e-5
