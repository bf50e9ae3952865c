"""The watchdog, on a fake clock."""

import pytest

from sebulba.ring import clocks as timing
from sebulba.ring.clocks import (
    ACT,
    AGREEMENT,
    COMPILE,
    ENVIRONMENT,
    MAKE_ENVIRONMENTS,
    UPDATE,
    WAIT_FOR_QUEUE,
    WallClock,
)
from sebulba.ring.threads import WatchdogError
from sebulba.run.watchdog import Timeouts, Watchdog, Watched


@pytest.fixture
def time_now(monkeypatch):
    class Now:
        seconds = 0.0

    monkeypatch.setattr(timing.time, "perf_counter", lambda: Now.seconds)
    return Now


def watch(clock, limits):
    watched = Watched(name="actor 1", where=lambda: "actor 1, cycle 7", clock=clock, limits=limits)
    return Watchdog([watched], now=lambda: timing.time.perf_counter())


def of_actor(timeouts, longest_update=lambda: 0.0):
    return timeouts.of_actor(longest_update)


def check_each_second_until(watchdog, time_now, seconds):
    while time_now.seconds < seconds:
        time_now.seconds = min(time_now.seconds + 1.0, seconds)
        watchdog.on_poll()


@pytest.mark.parametrize("activity", [ACT, ENVIRONMENT])
def test_watchdog_names_the_thread_the_activity_the_time_and_the_key(time_now, activity):
    clock = WallClock()
    time_now.seconds = 100.0
    watchdog = watch(clock, of_actor(Timeouts(env_s=60.0)))
    clock.begin(activity)
    check_each_second_until(watchdog, time_now, 160.9)
    time_now.seconds = 162.0
    with pytest.raises(WatchdogError) as error:
        watchdog.on_poll()
    assert str(error.value) == (
        f"actor 1: {activity} still running after 62.0 s; the limit is 60 s (actor.env_timeout_s)"
    )
    assert error.value.__notes__ == ["This happened in actor 1, cycle 7."]


def test_a_fused_act_cycle_may_also_wait_for_an_update_on_its_device(time_now):
    learner, actor = WallClock(), WallClock()
    watchdog = watch(actor, of_actor(Timeouts(env_s=10.0), learner.longest_update))
    learner.begin(UPDATE)
    actor.begin(ACT)
    check_each_second_until(watchdog, time_now, 40.0)  # the update still runs
    learner.lap(UPDATE)
    check_each_second_until(watchdog, time_now, 51.0)
    time_now.seconds = 51.5
    with pytest.raises(
        WatchdogError, match=r"the limit is 10 s \(actor\.env_timeout_s\) and 40.0 s"
    ):
        watchdog.on_poll()
    learner.lap(WAIT_FOR_QUEUE)
    actor.lap(ACT)
    actor.begin(ENVIRONMENT)  # on the host, so it waits for nothing
    check_each_second_until(watchdog, time_now, 62.0)
    time_now.seconds = 63.0
    with pytest.raises(WatchdogError, match=r"after 11\.5 s; the limit is 10 s"):
        watchdog.on_poll()


@pytest.mark.parametrize("how", ["waits", "compiles", "steps", "has no limit"])
def test_watchdog_leaves_a_thread_alone_that(time_now, how):
    clock = WallClock()
    env_s = None if how == "has no limit" else 1.0
    watchdog = watch(clock, of_actor(Timeouts(env_s=env_s, compile_s=200.0)))
    clock.begin(COMPILE if how == "compiles" else ENVIRONMENT)
    for time_now.seconds in range(1, 100):
        if how == "waits":
            clock.lap(ENVIRONMENT)
            clock.lap(WAIT_FOR_QUEUE)
        elif how == "steps":
            clock.lap(ENVIRONMENT)
            clock.begin(ENVIRONMENT)
        watchdog.on_poll()


@pytest.mark.parametrize("activity", [UPDATE, AGREEMENT])
def test_watchdog_applies_the_learners_limit_to_collectives(time_now, activity):
    clock = WallClock()
    watchdog = watch(clock, Timeouts(update_s=5.0).of_learner())
    clock.begin(activity)
    check_each_second_until(watchdog, time_now, 6.0)
    time_now.seconds = 7.0
    expected = rf"{activity} still running after 7\.0 s; .* \(learner\.update_timeout_s\)"
    with pytest.raises(WatchdogError, match=expected):
        watchdog.on_poll()
    assert Timeouts().of_learner() == of_actor(Timeouts()) == {}


@pytest.mark.parametrize(
    ("limits", "activity"),
    [(of_actor, COMPILE), (of_actor, MAKE_ENVIRONMENTS), (Timeouts.of_learner, COMPILE)],
)
def test_5_watchdog_limits_compilation_and_making_environments(time_now, limits, activity):
    clock = WallClock()
    watchdog = watch(clock, limits(Timeouts(env_s=1.0, update_s=1.0, compile_s=100.0)))
    clock.begin(activity)
    check_each_second_until(watchdog, time_now, 100.0)
    time_now.seconds = 102.0
    with pytest.raises(WatchdogError, match=r"the limit is 100 s \(run\.compile_timeout_s\)"):
        watchdog.on_poll()


def test_watchdog_does_not_count_the_time_of_a_stopped_process(time_now):
    clock = WallClock()
    watchdog = watch(clock, of_actor(Timeouts(env_s=60.0)))
    clock.begin(ENVIRONMENT)
    check_each_second_until(watchdog, time_now, 40.0)
    time_now.seconds += 10_000.0  # stopped, so nothing checked
    check_each_second_until(watchdog, time_now, 10_060.0)
    time_now.seconds = 10_063.0
    with pytest.raises(WatchdogError, match=r"still running after 62\.0 s"):
        watchdog.on_poll()


def test_watchdog_counts_all_time_of_a_call_that_began_after_a_stop(time_now):
    clock = WallClock()
    watchdog = watch(clock, of_actor(Timeouts(env_s=5.0)))
    time_now.seconds = 1_000.0
    watchdog.on_poll()
    clock.begin(ENVIRONMENT)
    check_each_second_until(watchdog, time_now, 1_006.0)
    time_now.seconds = 1_007.0
    with pytest.raises(WatchdogError, match=r"still running after 7\.0 s"):
        watchdog.on_poll()
