"""The throughput model on hand-fed times."""

import pytest

from sebulba.tools.plan.model import Cost, Parts, predict, scaled_update


def parts(act, update, *, act_work=0.0, update_work=0.0, per_cycle=1):
    return Parts(
        act=Cost(wall_s=act, core_s=act_work),
        environment=Cost(wall_s=act / 2, core_s=act_work / 2),
        transfer=Cost(wall_s=0.0, core_s=0.0),
        update=Cost(wall_s=update, core_s=update_work),
        env_steps=320,
        trajectories_per_cycle=per_cycle,
    )


def test_more_actors_help_while_they_are_the_bottleneck():
    slow = parts(0.1, 0.001)
    one = predict(slow, num_actors=1, num_cores=2)
    sixteen = predict(slow, num_actors=16, num_cores=2)
    assert (one.bound, sixteen.bound) == ("actors", "actors")
    assert one.env_steps_per_s == pytest.approx(3200)
    assert sixteen.env_steps_per_s == pytest.approx(16 * 3200)


def test_more_actors_do_not_help_where_the_learner_is_the_bottleneck():
    busy = parts(0.01, 0.02, per_cycle=2)
    for num_actors in (2, 8):
        prediction = predict(busy, num_actors=num_actors, num_cores=64)
        assert prediction.bound == "learner"
        assert prediction.env_steps_per_s == pytest.approx(2 * 320 / 0.02)


def test_acting_and_learning_share_the_cores():
    shared = parts(0.01, 0.01, act_work=0.01, update_work=0.02)
    prediction = predict(shared, num_actors=8, num_cores=2)
    assert prediction.bound == "cores"
    assert prediction.env_steps_per_s == pytest.approx(320 * 2 / 0.03)


@pytest.mark.parametrize(("num_actors", "cycle_s"), [(1, 0.05), (2, 0.03), (8, 0.03)])
def test_in_lock_step_acting_and_learning_take_turns(num_actors, cycle_s):
    prediction = predict(
        parts(0.02, 0.01, per_cycle=2), num_actors=num_actors, num_cores=64, is_lock_step=True
    )
    assert prediction.bound == "lock-step"
    assert prediction.env_steps_per_s == pytest.approx(2 * 320 / cycle_s)


def test_updates_on_more_devices_keep_the_part_that_does_not_divide():
    one, four = Cost(wall_s=1.0, core_s=0.5), Cost(wall_s=0.4, core_s=0.5)
    two = scaled_update(one, four, num_all=4, num_devices=2)
    assert two.wall_s == pytest.approx(0.2 + 0.8 / 2)
    assert two.core_s == pytest.approx(0.5)
    for num_devices, expected in ((1, one), (4, four)):
        got = scaled_update(one, four, num_all=4, num_devices=num_devices)
        assert got.wall_s == pytest.approx(expected.wall_s)
