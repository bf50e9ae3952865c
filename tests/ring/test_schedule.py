"""The order of trajectories and the policy-lag dial."""

import itertools

import pytest

from sebulba.ring.schedule import LagSchedule


def test_lock_step_asks_for_exactly_the_version_being_updated():
    schedule = LagSchedule(num_actors=2, trajectories_per_cycle=2, max_policy_lag=0)
    assert [schedule.min_policy_version(0, cycle) for cycle in range(3)] == [0, 1, 2]
    assert [schedule.min_policy_version(1, cycle) for cycle in range(3)] == [0, 1, 2]
    assert schedule.actors_to_take(5) == [0, 1]


def test_actors_take_turns_when_there_are_more_of_them_than_trajectories_in_a_cycle():
    schedule = LagSchedule(num_actors=3, trajectories_per_cycle=2, max_policy_lag=0)
    assert [schedule.actors_to_take(cycle) for cycle in range(3)] == [[0, 1], [2, 0], [1, 2]]
    assert schedule.min_policy_version(0, 1) == 1  # trajectory 3 of cycle 1
    assert schedule.min_policy_version(2, 1) == 2  # trajectory 5 of cycle 2


def test_without_a_bound_any_version_and_any_actor_will_do():
    schedule = LagSchedule(num_actors=2, trajectories_per_cycle=3, max_policy_lag=None)
    assert schedule.min_policy_version(1, 1000) == 0
    assert schedule.actors_to_take(7) == [None, None, None]


@pytest.mark.parametrize("num_actors", [1, 2, 3])
@pytest.mark.parametrize("trajectories_per_cycle", [1, 2, 5])
@pytest.mark.parametrize("max_policy_lag", [0, 1, 4])
def test_every_trajectory_is_allowed_before_its_turn_and_never_older_than_the_bound(
    num_actors, trajectories_per_cycle, max_policy_lag
):
    schedule = LagSchedule(
        num_actors=num_actors,
        trajectories_per_cycle=trajectories_per_cycle,
        max_policy_lag=max_policy_lag,
    )
    acted = [itertools.count() for _ in range(num_actors)]
    for learner_cycle in range(20):
        for actor_id in schedule.actors_to_take(learner_cycle):
            min_version = schedule.min_policy_version(actor_id, next(acted[actor_id]))
            assert min_version <= learner_cycle, "the learner would wait for ever"
            assert learner_cycle - min_version <= max_policy_lag
