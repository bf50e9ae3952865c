"""The reports and decisions of hosts after a learner cycle."""

import dataclasses
import types

import jax
import numpy as np
import pytest

from sebulba.devices.learner_devices import LearnerDevices
from sebulba.hosts.agreement import Agreement, TrajectoryReport, pack, unpack
from sebulba.learning.learner import run_learner
from sebulba.ring.run_end import RunEnd
from sebulba.ring.timing import AGREEMENT, COMPILE, WallClock
from sebulba.types import EpisodeRecord


def make_report(num_episodes=3):
    episodes = tuple(
        EpisodeRecord(episode_return=0.5 + number, episode_length=10 + number)
        for number in range(num_episodes)
    )
    return TrajectoryReport(
        env_steps=17, policy_lag=2, num_episodes=num_episodes, episodes=episodes
    )


@pytest.mark.parametrize("num_episodes", [0, 3, 5])
def test_unpack_inverts_pack(num_episodes):
    report = make_report(num_episodes)
    assert unpack(pack(report, max_episodes=5)) == report


def test_a_packed_report_keeps_the_last_episodes_and_the_number_of_all_episodes():
    report = make_report(num_episodes=4)
    expected = dataclasses.replace(report, episodes=report.episodes[-2:])
    assert unpack(pack(report, max_episodes=2)) == expected


def test_packed_reports_have_constant_length():
    sizes = {pack(make_report(number), max_episodes=4).shape for number in range(8)}
    assert len(sizes) == 1
    assert pack(make_report(), max_episodes=4).dtype == np.int32


def test_the_watchdog_sees_the_learner_wait_for_other_hosts():
    clock, activities, run_end = WallClock(), [], RunEnd()

    class Progress:
        def record(self, items, metrics, *, queue_depth):
            activities.append(clock.current[0])
            run_end.goal = len(activities) == 3

    learner = types.SimpleNamespace(
        clock=clock,
        num_cycles=0,
        stage=lambda stagings: None,
        run_cycle=lambda items: [],
        check=lambda: None,
    )
    schedule = types.SimpleNamespace(actors_to_take=lambda cycle: [])
    run_learner(
        learner,
        schedule=schedule,
        trajectories=[],
        stagings={},
        progress=Progress(),
        run_end=run_end,
    )
    assert activities == [COMPILE, AGREEMENT, AGREEMENT]


def test_a_single_host_decides_nothing_and_may_always_save():
    run_end = RunEnd()
    agreement = Agreement(LearnerDevices(jax.devices()[:2]), run_end=run_end, max_episodes=5)
    run_end.received = 15
    reports = [make_report(1), make_report(2)]
    assert agreement.decide(reports) == reports
    assert run_end.signal is None
    assert agreement.allows_checkpoint
