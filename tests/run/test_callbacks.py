"""Callbacks that are slower than the rows of a run."""

import pytest

from sebulba.ring.run_end import RunEnd
from sebulba.run.callbacks import Callbacks


@pytest.fixture
def slow():
    """Functions that take a second of a fake clock, with the rows that they have seen."""

    class Slow:
        seconds = 0.0

        def __init__(self):
            self.seen, self.warnings, self.end = [], [], RunEnd(hosts_agree=False)
            self.last = None  # the row at which the run is to end
            self.callbacks = Callbacks(
                [self.look], self.end, on_warning=self.warnings.append, now=lambda: self.seconds
            )

        def look(self, event, row):
            self.seen.append(row["number"])
            self.seconds += 1.0
            return row["number"] == self.last

        def add(self, numbers):
            for number in numbers:
                self.callbacks.add("metrics", {"number": number})

    return Slow()


def test_the_supervisor_looks_at_everything_else_between_slow_calls(slow):
    slow.add(range(3))
    slow.callbacks.on_poll()
    assert slow.seen == [0]
    slow.callbacks.on_poll()
    assert slow.seen == [0, 1]
    assert not slow.warnings


def test_a_run_that_ends_by_itself_delivers_every_row(slow):
    slow.add(range(20))
    slow.callbacks.on_poll()
    slow.end.goal = True
    slow.callbacks.close(slow.end)
    assert slow.seen == list(range(20))


def test_a_signal_ends_the_delivery(slow):
    slow.add(range(20))
    slow.end.signal = 2
    slow.callbacks.close(slow.end)
    assert slow.seen == [0]


def test_a_callback_that_ends_the_run_gets_no_long_rest(slow):
    slow.last = 1
    slow.add(range(20))
    slow.callbacks.on_poll()
    slow.callbacks.on_poll()
    assert slow.end.goal
    slow.callbacks.close(slow.end)
    assert slow.seen == [0, 1, 2]


def test_many_waiting_rows_are_warned_of_once(slow):
    slow.add(range(101))
    for _ in range(3):
        slow.callbacks.on_poll()
    (warning,) = slow.warnings
    assert warning == (
        "callbacks: 100 rows wait, since they come faster than the callbacks return:"
        " raise run.log_interval_env_steps"
    )
