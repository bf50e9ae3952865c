"""Trajectories hold each frame of a stack once, and the learner gets the stacks, bit for bit."""

import dataclasses

import jax
import numpy as np
import pytest

from sebulba.config import (
    ActorConfig,
    Config,
    DevicesConfig,
    EnvConfig,
    LearnerConfig,
    RunConfig,
)
from sebulba.devices.memory import num_bytes
from sebulba.toolkit.frame_stack import last_row, with_stacks
from tests.disturbances import collected_of
from tests.ring_parts import assert_equal_bits, published, trajectory_of
from tests.rings import act, close, keep_observations, make_ring, run_ring
from tests.toys import ToyConfig

pytestmark = [pytest.mark.usefixtures("no_thread_is_left"), pytest.mark.shares_programs]

STACK = "sebulba.envs.frame_stack:FrameStack"
CATCH = EnvConfig(suite="jax", id="Catch-v0", wrappers=({STACK: {"size": 3, "axis": -1}},))


def stacked(**options):
    return EnvConfig(suite="tests.envs.stacked:make", id="stacked", options=options)


def make_config(env=CATCH, *, num_learner_devices=1, env_steps=300, threads=2, **actor):
    actor = {"num_envs": 4, "trajectory_length": 5, "threads_per_device": threads} | actor
    return Config(
        env=env,
        devices=DevicesConfig(actor=(0,), learner=tuple(range(num_learner_devices))),
        actor=ActorConfig(**actor),
        learner=LearnerConfig(policy_lag=1, trajectories_per_cycle=2),
        run=RunConfig(total_env_steps=env_steps, log_interval_env_steps=100),
        agent=ToyConfig(),
    )


def networks_of(config, mode):
    ring = make_ring(config)
    run_ring(ring, mode=mode)
    return published(ring.learner)


@pytest.mark.parametrize(
    ("config", "mode"),
    [
        pytest.param(make_config(), "threads", id="fused"),
        pytest.param(make_config(cycle="stepped"), "serial", id="stepped"),
        pytest.param(make_config(), "anakin", id="one program"),
        pytest.param(make_config(num_learner_devices=2), "serial", id="two learner devices"),
        pytest.param(
            make_config(stacked(lives=True)), "serial", id="lives", marks=pytest.mark.slow
        ),
        pytest.param(
            make_config(stacked(fill="zeros")), "serial", id="zeros", marks=pytest.mark.slow
        ),
    ],
)
def test_trajectories_that_hold_each_frame_once_give_the_same_networks(config, mode, monkeypatch):
    got = networks_of(config, mode)
    keep_observations(monkeypatch)
    assert_equal_bits(got, networks_of(config, mode))


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(make_config(cycle="stepped"), id="stepped"),
        pytest.param(make_config(), id="fused"),
        pytest.param(make_config(stacked(lives=True)), id="lives"),
        pytest.param(make_config(stacked(lives=True, fill="zeros")), id="lives and zeros"),
        pytest.param(make_config(stacked(), trajectory_length=1), id="one step"),
    ],
)
def test_a_trajectory_with_its_stacks_is_the_one_that_would_have_held_them(config, monkeypatch):
    once = make_ring(config)
    keep_observations(monkeypatch)
    ring = make_ring(config)
    num_resets = 0
    for (*_, got), (*_, expected) in zip(
        collected_of(once, 20), collected_of(ring, 20), strict=True
    ):
        assert num_bytes(got.trajectory) < num_bytes(expected.trajectory)
        assert_equal_bits(with_stacks(got.trajectory), expected.trajectory)
        assert_equal_bits(got.carry, expected.carry)
        assert_equal_bits(got.tally, expected.tally)
        in_host_memory = jax.tree.map(np.asarray, got.trajectory.env_steps)
        assert_equal_bits(last_row(in_host_memory), expected.carry.env_step)
        num_resets += expected.trajectory.env_steps.is_first[1:].sum()
    assert num_resets > 3
    close(once)
    close(ring)


def test_whole_episodes_hold_their_observations():
    ring = make_ring(make_config(rollout="episodes"))
    assert trajectory_of(act(ring)).env_steps.observation.shape == (6, 4, 150)
    close(ring)


def test_the_memory_plan_counts_each_frame_once():
    ring = make_ring(make_config(num_envs=8, threads=1))
    planned = ring.programs.memory_plan.actor_device["trajectory buffers"]
    assert planned == num_bytes(trajectory_of(act(ring)))
    close(ring)


def test_the_place_of_a_number_that_is_not_finite_is_its_place_in_the_stack(monkeypatch):
    from tests.envs.stacked import Stacked

    show, shown = Stacked._show, []

    def bad(self, begins):
        shown.append(show(self, begins))
        if len(shown) == 3:
            self._frames[1, -1, 0] = np.nan
            shown[-1][1, 4] = np.nan
        return shown[-1]

    monkeypatch.setattr(Stacked, "_show", bad)
    ring = make_ring(make_config(stacked(), threads=1))
    with pytest.raises(Exception, match=r"observation\[4\] of env 1 is nan in row 2 of the traj"):
        act(ring)
    close(ring)


def test_episode_reducers_see_the_stacks():
    config = make_config(threads=1)
    reducers = {"pixels": f"{__name__}:Pixels"}
    config = dataclasses.replace(
        config, run=dataclasses.replace(config.run, episode_reducers=reducers)
    )
    ring = make_ring(config)
    ended = [collected.tally.ended for *_, collected in collected_of(ring, 4)]
    results = np.concatenate([np.asarray(each.reduced["pixels"])[each.has_ended] for each in ended])
    assert len(results) > 3
    # Ball and paddle in each of three frames; a ball that is caught is where the paddle is.
    assert set(results) <= {5.0, 6.0}
    close(ring)


class Pixels:
    """How many pixels the last observation of an episode shows."""

    def init(self, num_envs):
        return ()

    def update(self, state, env_step, action, extras):
        return state, env_step.observation.sum(axis=-1)
