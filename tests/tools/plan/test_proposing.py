"""The proposed settings, on hand-fed times."""

import dataclasses

import pytest

from sebulba.tools.plan.model import Cost, Parts
from sebulba.tools.plan.proposing import candidates, propose, splits


def make_parts(num_envs, act, update):
    nothing = Cost(wall_s=0.0, core_s=0.0)
    return Parts(
        act=Cost(wall_s=act, core_s=0.0),
        environment=nothing,
        transfer=nothing,
        update=Cost(wall_s=update, core_s=0.0),
        env_steps=20 * num_envs,
        trajectories_per_cycle=1,
    )


def divided(parts, num_learner_devices):
    update = Cost(wall_s=parts.update.wall_s / num_learner_devices, core_s=0.0)
    return dataclasses.replace(parts, update=update)


def find(parts, num_devices=1):
    return candidates({16: parts}, divided, num_devices=num_devices, num_cores=2, policy_lag=None)


def test_fewest_threads_that_keep_the_learner_busy_are_proposed():
    proposed = propose(find(make_parts(16, act=0.04, update=0.01)), 16)
    assert proposed.setting.threads_per_device == 4
    assert proposed.prediction.env_steps_per_s == pytest.approx(320 / 0.01)


def test_devices_go_to_the_bottleneck():
    proposed = propose(find(make_parts(16, act=0.01, update=0.04), num_devices=4), 16)
    assert len(proposed.setting.learner_devices) == 4
    assert proposed.prediction.env_steps_per_s == pytest.approx(320 / 0.01)


def test_splits_are_all_ratios_and_shared():
    found = list(splits(4))
    assert found[0] == ((0, 1, 2, 3), (0, 1, 2, 3))
    assert [(len(actor), len(learner)) for actor, learner in found[1:]] == [(1, 3), (2, 2), (3, 1)]
    assert all(not set(actor) & set(learner) for actor, learner in found[1:])


def test_environments_that_learner_devices_cannot_divide_are_left_out():
    found = candidates(
        {6: make_parts(6, 0.01, 0.01)}, divided, num_devices=4, num_cores=2, policy_lag=None
    )
    assert {len(each.setting.learner_devices) for each in found} == {1, 2, 3}


def test_flags_give_the_proposed_setting():
    setting = propose(find(make_parts(16, act=0.04, update=0.01)), 16).setting
    assert setting.flags == (
        "--actor.threads-per-device 4 --actor.num-envs 16 --learner.queue-slots-per-actor 1"
        " --devices.actor '[0]' --devices.learner '[0]'"
    )
