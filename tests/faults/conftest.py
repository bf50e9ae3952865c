"""Threads that hang, for runs in this process."""

import threading

import pytest

from sebulba.run import ending
from tests.disturbances import set_stop_deadlines
from tests.faults.runs import LONG_S


@pytest.fixture
def blocked(monkeypatch):
    """Lets threads that hang in this process go on once the test is over."""
    release = threading.Event()
    ends = []
    monkeypatch.setattr(ending, "end_process", ends.append)
    set_stop_deadlines(monkeypatch, deadline_s=0.2, of_stuck_s=0.2)
    before = set(threading.enumerate())
    yield release, ends
    release.set()
    for thread in set(threading.enumerate()) - before:
        thread.join(LONG_S)
        assert not thread.is_alive()
