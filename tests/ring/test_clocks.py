"""Wall-time accounting and the bottleneck that it shows."""

import pytest

from sebulba.ring import clocks as timing
from sebulba.ring.clocks import TimeShares, WallClock
from sebulba.run.summary import describe_bottleneck


@pytest.fixture
def clock_time(monkeypatch):
    class Now:
        seconds = 0.0

    monkeypatch.setattr(timing.time, "perf_counter", lambda: Now.seconds)
    return Now


def test_laps_record_all_time_once(clock_time):
    clock = WallClock()
    for activity, at in [("act", 2.0), ("transfer", 2.5), ("act", 5.0)]:
        clock_time.seconds = at
        clock.lap(activity)
    assert clock.seconds == {"act": 4.5, "transfer": 0.5}


def test_shares_cover_the_time_since_the_restart_over_all_clocks_of_a_kind(clock_time):
    actors, learner = [WallClock(), WallClock()], WallClock()
    clock_time.seconds = 100.0
    for clock in (*actors, learner):
        clock.lap("compilation")
    shares = TimeShares({"actor": actors, "learner": [learner]})
    shares.restart()
    clock_time.seconds = 103.0
    actors[0].lap("act")
    actors[1].lap("wait for queue")
    clock_time.seconds = 104.0
    actors[0].lap("wait for queue")
    actors[1].lap("wait for queue")
    assert shares.shares() == {"actor": {"compilation": 0.0, "act": 3 / 8, "wait for queue": 5 / 8}}


@pytest.mark.parametrize(
    ("actor", "learner", "expected"),
    [
        (
            {"act": 0.9, "transfer": 0.1},
            {"wait for trajectories": 0.7, "update": 0.3},
            "actor-bound",
        ),
        ({"act": 0.3, "wait for queue": 0.7}, {"update": 1.0}, "learner-bound"),
        ({"act": 0.3, "wait for networks": 0.7}, {"update": 1.0}, "learner-bound"),
        (
            {"act": 0.5, "wait for networks": 0.5},
            {"wait for trajectories": 0.5, "update": 0.5},
            "policy_lag",
        ),
        ({"act": 0.9, "wait for queue": 0.1}, {"update": 0.95, "publish": 0.05}, "balanced"),
        ({}, {"update": 0.9, "metrics": 0.1}, "one program"),
        ({}, {}, "too short"),
    ],
)
def test_the_bottleneck_is_named_with_the_keys_to_change(actor, learner, expected):
    assert expected in describe_bottleneck({"actor": actor, "learner": learner})


def test_a_connection_that_takes_much_of_the_updates_is_the_bottleneck():
    shares = {"actor": {"act": 0.4, "wait for queue": 0.6}, "learner": {"update": 1.0}}
    assert "learner-bound" in describe_bottleneck(shares, all_reduce=0.2)
    assert "bound by the connection" in describe_bottleneck(shares, all_reduce=0.5)
    assert "learner.gradients" in describe_bottleneck(shares, all_reduce=0.5)
