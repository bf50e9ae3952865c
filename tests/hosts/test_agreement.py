"""The reports and decisions of hosts after a learner cycle."""

import dataclasses

import jax
import numpy as np
import pytest

from sebulba.devices.learner_devices import LearnerDevices
from sebulba.hosts.agreement import Agreement, message_type, read_infos, write_infos
from sebulba.ring.clocks import AGREEMENT, COMPILE
from sebulba.ring.run_end import RunEnd
from tests.disturbances import before
from tests.ring_parts import assert_same_infos, make_episodes, make_info
from tests.rings import make_ring, run_ring, stop
from tests.run.runs import make_config


def infos_of(*counts):
    """Return infos of trajectories in which so many episodes finished."""
    return [
        make_info(
            make_episodes(0.5 + np.arange(count), 10 + np.arange(count)),
            env_steps=17,
        )
        for count in counts
    ]


def message_of(infos, *, max_episodes):
    message = np.zeros((), message_type(len(infos), max_episodes, ()))
    write_infos(message["unrolls"], infos, ())
    return message


@pytest.mark.parametrize("num_episodes", [0, 3, 5])
def test_a_message_gives_the_infos_that_it_was_made_of(num_episodes):
    infos = infos_of(num_episodes, 2)
    assert_same_infos(read_infos(message_of(infos, max_episodes=5)["unrolls"], ()), infos)


def test_a_message_keeps_the_last_episodes_and_the_number_of_all_episodes():
    (info,) = infos_of(4)
    expected = dataclasses.replace(info, episodes=info.episodes.last(2))
    assert (expected.num_episodes, len(expected.episodes)) == (4, 2)
    assert_same_infos(read_infos(message_of([info], max_episodes=2)["unrolls"], ()), [expected])


def test_messages_have_constant_length_in_words():
    sizes = {message_of(infos_of(number), max_episodes=4).nbytes for number in range(8)}
    assert len(sizes) == 1
    assert sizes.pop() % 4 == 0


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
    end = RunEnd()
    agreement = Agreement(LearnerDevices(jax.devices()[:2]), end=end, max_episodes=5)
    end.received = 15
    infos = infos_of(1, 2)
    assert agreement.gather(infos) == infos
    assert end.signal is None
    assert agreement.allows_checkpoint
