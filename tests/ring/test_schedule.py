"""The order of trajectories and the policy lag."""

import itertools
import random
import threading
import time

import pytest

from sebulba.ring.schedule import Schedule
from tests.ring_parts import info_of, networks_deque, numbered_item, trajectory_deque
from tests.rings import Closed


def test_lock_step_acts_with_exactly_the_version_being_updated():
    schedule = Schedule(num_actors=2, trajectories_per_cycle=2, policy_lag=0)
    assert [schedule.policy_version(0, cycle) for cycle in range(3)] == [0, 1, 2]
    assert [schedule.policy_version(1, cycle) for cycle in range(3)] == [0, 1, 2]
    assert schedule.actors_to_take(5) == [0, 1]


def test_actors_take_turns_when_there_are_more_of_them_than_trajectories_in_a_cycle():
    schedule = Schedule(num_actors=3, trajectories_per_cycle=2, policy_lag=0)
    assert [schedule.actors_to_take(cycle) for cycle in range(3)] == [[0, 1], [2, 0], [1, 2]]
    assert schedule.policy_version(0, 1) == 1  # trajectory 3 of cycle 1
    assert schedule.policy_version(2, 1) == 2  # trajectory 5 of cycle 2


def test_free_running_takes_the_newest_networks_and_any_actor():
    schedule = Schedule(num_actors=2, trajectories_per_cycle=3, policy_lag=None)
    assert schedule.policy_version(1, 1000) is None
    assert schedule.actors_to_take(7) == [None, None, None]
    assert schedule.num_staged == 1


@pytest.mark.parametrize("num_actors", [1, 2, 3])
@pytest.mark.parametrize("trajectories_per_cycle", [1, 2, 5])
@pytest.mark.parametrize("policy_lag", [0, 1, 4])
def test_every_trajectory_has_exactly_the_policy_lag(
    num_actors, trajectories_per_cycle, policy_lag
):
    schedule = Schedule(
        num_actors=num_actors,
        trajectories_per_cycle=trajectories_per_cycle,
        policy_lag=policy_lag,
    )
    acted = [itertools.count() for _ in range(num_actors)]
    for learner_cycle in range(20):
        for actor_id in schedule.actors_to_take(learner_cycle):
            version = schedule.policy_version(actor_id, next(acted[actor_id]))
            assert version == max(0, learner_cycle - policy_lag)


def run_toy_ring(rng, *, num_actors, trajectories_per_cycle, policy_lag, slots, num_cycles):
    """Runs both deques between threads that only sleep; returns what the learner took.

    Each trajectory is `(actor, sequence number, policy version)`.
    """
    schedule = Schedule(
        num_actors=num_actors,
        trajectories_per_cycle=trajectories_per_cycle,
        policy_lag=policy_lag,
    )
    deque, ledger = trajectory_deque(num_actors, slots_per_actor=slots)
    staging = networks_deque(schedule.num_staged)
    staging.append(0, "networks 0")
    pauses = [rng.choice([0.0, 0.0, 1e-4, 5e-4]) for _ in range(num_actors + 1)]

    def act(actor_id):
        try:
            for number in itertools.count():
                version, networks = staging.take(schedule.policy_version(actor_id, number))
                assert networks == f"networks {version}"
                time.sleep(pauses[actor_id])
                ledger.collect(actor_id, 1)
                deque.put(numbered_item(actor_id, number, env_steps=1, policy_version=version))
        except Closed:
            pass
        finally:
            deque.close()  # So that nobody waits for an actor that failed.

    actors = [threading.Thread(target=act, args=(each,), daemon=True) for each in range(num_actors)]
    for actor in actors:
        actor.start()
    taken = []
    for cycle in range(num_cycles):
        for actor_id in schedule.actors_to_take(cycle):
            info = info_of(deque.get(actor_id))
            taken.append((info.actor_id, info.sequence_number, info.policy_version))
        time.sleep(pauses[-1])
        staging.append(cycle + 1, f"networks {cycle + 1}")
        assert len(staging.staged) <= schedule.num_staged
    deque.close()
    staging.close()
    for actor in actors:
        actor.join(60)
        assert not actor.is_alive()
    return taken


@pytest.mark.parametrize("num_combinations", [60, pytest.param(2_000, marks=pytest.mark.slow)])
def test_no_combination_waits_in_vain_and_none_depends_on_timing(num_combinations):
    rng = random.Random(0)
    for _ in range(num_combinations):
        num_actors, per_cycle = rng.randint(1, 5), rng.randint(1, 7)
        lag, slots, num_cycles = rng.randint(0, 4), rng.randint(1, 3), rng.randint(1, 8)
        taken = run_toy_ring(
            rng,
            num_actors=num_actors,
            trajectories_per_cycle=per_cycle,
            policy_lag=lag,
            slots=slots,
            num_cycles=num_cycles,
        )
        assert taken == [
            (g % num_actors, g // num_actors, max(0, g // per_cycle - lag))
            for g in range(num_cycles * per_cycle)
        ]
