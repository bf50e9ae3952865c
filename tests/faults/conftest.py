"""Threads that hang, for runs in this process."""

import threading

import pytest

from sebulba.run import lifecycle, modes
from tests.faults.runs import LONG_S


@pytest.fixture
def blocked(monkeypatch):
    """Lets threads that hang in this process go on once the test is over."""
    release = threading.Event()
    ends = []
    monkeypatch.setattr(lifecycle, "end_process", ends.append)
    monkeypatch.setattr(modes, "_STOP_DEADLINE_S", 0.2)
    monkeypatch.setattr(modes, "_STOP_DEADLINE_OF_STUCK_S", 0.2)
    before = set(threading.enumerate())
    yield release, ends
    release.set()
    for thread in set(threading.enumerate()) - before:
        thread.join(LONG_S)
        assert not thread.is_alive()
