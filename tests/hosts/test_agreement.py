"""The reports and decisions of hosts after a learner cycle."""

import dataclasses

import jax
import numpy as np
import pytest

from sebulba.devices.learner_devices import LearnerDevices
from sebulba.hosts.agreement import Agreement, pack, unpack
from sebulba.ring.run_end import RunEnd
from sebulba.ring.timing import AGREEMENT, COMPILE
from sebulba.types import EpisodeRecord
from tests import rings
from tests.rings import before, make_ring, run_ring, stop
from tests.run.runs import make_config


def make_report(num_episodes=3):
    episodes = tuple(
        EpisodeRecord(episode_return=0.5 + number, episode_length=10 + number)
        for number in range(num_episodes)
    )
    return rings.make_report(episodes, env_steps=17, policy_lag=2)


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


def test_the_watchdog_sees_the_learner_wait_for_other_hosts(monkeypatch, tmp_path):
    ring, activities = make_ring(make_config(tmp_path)), []

    def remember(_):
        activities.append(ring.learner.clock.current[0])

    def stop_after_three(infos):
        if len(activities) == 3:
            stop(ring)

    before("count", remember, setattr=monkeypatch.setattr)
    run_ring(ring, mode="threads", on_cycle=stop_after_three)
    assert activities == [COMPILE, AGREEMENT, AGREEMENT]


def test_a_single_host_decides_nothing_and_may_always_save():
    run_end = RunEnd()
    agreement = Agreement(LearnerDevices(jax.devices()[:2]), run_end=run_end, max_episodes=5)
    run_end.received = 15
    reports = [make_report(1), make_report(2)]
    assert agreement.decide(reports) == reports
    assert run_end.signal is None
    assert agreement.allows_checkpoint
