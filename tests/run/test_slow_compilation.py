"""The line that says what is being compiled, on a fake clock."""

import jax
import pytest

from sebulba.ring import clocks as timing
from sebulba.ring.clocks import ACT, COMPILE, UPDATE, WAIT_FOR_TRAJECTORIES, WallClock
from sebulba.ring.ring import Observer
from sebulba.run import observers, training
from sebulba.run.slow_compilation import SlowCompilation
from tests.evaluation.runs import tiny_config


@pytest.fixture
def time_now(monkeypatch):
    class Now:
        seconds = 0.0

    monkeypatch.setattr(timing.time, "perf_counter", lambda: Now.seconds)
    return Now


@pytest.fixture
def lines_until(time_now):
    """Returns the lines with their times, after polls up to a time."""
    lines, clocks = [], {"the learner cycle": WallClock(), "the act cycle of actor 0": WallClock()}
    observer = SlowCompilation(
        clocks,
        on_message=lambda text: lines.append((time_now.seconds, text)),
        now=lambda: time_now.seconds,
    )

    def poll(seconds):
        while time_now.seconds < seconds:
            time_now.seconds += 0.5
            observer.on_poll()
        return lines

    poll.learner, poll.actor = clocks.values()
    return poll


def test_a_long_compilation_is_told_after_10_seconds_and_ever_more_rarely(lines_until):
    lines_until.actor.begin(COMPILE)
    assert lines_until(9.5) == []
    assert [seconds for seconds, _ in lines_until(100.0)] == [10.0, 30.0, 90.0]
    _, text = lines_until(100.0)[1]
    assert text.startswith("compiling for 30 s: the act cycle of actor 0.")
    assert text.endswith(f" {jax.config.values['jax_compilation_cache_dir']}")


def test_all_that_is_being_compiled_is_named(lines_until):
    lines_until.learner.begin(COMPILE)
    lines_until.actor.begin(COMPILE)
    (line,) = lines_until(12.0)
    assert "10 s: the learner cycle, the act cycle of actor 0" in line[1]


def test_the_threads_of_a_run_are_looked_at(monkeypatch, tmp_path):
    made = []

    class Polled(Observer):
        has_polled = False

        def on_poll(self):
            self.has_polled = True

    def look_at(ring, *, on_message):
        assert slow_compilation_of(ring, on_message=on_message)._clocks == {
            "the learner cycle": ring.learner.clock,
            "the act cycle of actor 0": ring.actors[0].clock,
        }
        made.append(Polled())
        return made[0]

    slow_compilation_of = observers.slow_compilation_of
    monkeypatch.setattr(observers, "slow_compilation_of", look_at)
    assert training.train_to_exit_code(tiny_config("impala", tmp_path / "run")) == 0
    assert made[0].has_polled


def test_a_short_compilation_and_long_updates_are_not_told(lines_until):
    lines_until.learner.lap(WAIT_FOR_TRAJECTORIES)
    lines_until.actor.begin(COMPILE)
    lines_until(5.0)
    lines_until.actor.lap(ACT)
    lines_until.actor.begin(ACT)
    lines_until.learner.begin(UPDATE)
    assert lines_until(200.0) == []
