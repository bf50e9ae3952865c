"""The two deques: bounded, ordered, closable, and never losing a trajectory."""

import threading

import pytest

from sebulba.ring.ledger import Ledger, LedgerError
from tests.ring_parts import SequenceError, info_of, networks_deque, numbered_item, trajectory_deque
from tests.rings import Closed


def collect_and_put(deque, ledger, item):
    info = info_of(item)
    ledger.collect(info.actor_id, info.env_steps)
    deque.put(item)


def start(target):
    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    return thread


def test_get_returns_items_in_order_of_arrival():
    deque, ledger = trajectory_deque(2)
    first, second = numbered_item(1, 0), numbered_item(0, 0)
    collect_and_put(deque, ledger, first)
    collect_and_put(deque, ledger, second)
    assert deque.get() is first
    assert deque.get() is second


def test_get_of_one_actor_skips_the_others():
    deque, ledger = trajectory_deque(2)
    other, wanted = numbered_item(1, 0), numbered_item(0, 0)
    collect_and_put(deque, ledger, other)
    collect_and_put(deque, ledger, wanted)
    assert deque.get(0) is wanted
    assert len(deque) == 1


def test_put_waits_only_for_a_slot_of_its_own_actor():
    deque, ledger = trajectory_deque(2)
    collect_and_put(deque, ledger, numbered_item(0, 0))
    entered = threading.Event()

    def put_second():
        ledger.collect(0, 10)
        entered.set()
        deque.put(numbered_item(0, 1))

    blocked = start(put_second)
    entered.wait()
    collect_and_put(deque, ledger, numbered_item(1, 0))
    # Under any timing, actor 0's second item cannot enter before its first is taken.
    assert len(deque) == 2
    deque.get(0)
    blocked.join(60)
    assert not blocked.is_alive()
    assert info_of(deque.get(0)).sequence_number == 1


def test_get_raises_when_a_trajectory_of_an_actor_is_missing():
    deque, ledger = trajectory_deque(2)
    collect_and_put(deque, ledger, numbered_item(0, 1))
    with pytest.raises(SequenceError, match="expected trajectory 0, got 1"):
        deque.get()


@pytest.mark.parametrize("blocked_call", ["put", "get"])
def test_close_ends_a_wait(blocked_call):
    deque, ledger = trajectory_deque(1)
    if blocked_call == "put":
        collect_and_put(deque, ledger, numbered_item(0, 0))
    outcome = []

    def blocked():
        try:
            if blocked_call == "put":
                collect_and_put(deque, ledger, numbered_item(0, 1))
            else:
                deque.get()
        except Closed:
            outcome.append("closed")

    thread = start(blocked)
    deque.close()
    thread.join(60)
    assert outcome == ["closed"]


def test_ledger_balances_through_a_run_and_its_stop():
    deque, ledger = trajectory_deque(2, slots_per_actor=2)
    collect_and_put(deque, ledger, numbered_item(0, 0, env_steps=7))
    collect_and_put(deque, ledger, numbered_item(1, 0, env_steps=5))
    item = deque.get(0)
    ledger.move(0, info_of(item).env_steps, "in_flight", "learned")
    ledger.collect(0, 6)
    assert ledger.balance() == [
        {"acted": 13, "in_flight": 6, "queued": 0, "learned": 7, "discarded": 0},
        {"acted": 5, "in_flight": 0, "queued": 5, "learned": 0, "discarded": 0},
    ]
    deque.close()
    with pytest.raises(Closed):
        deque.put(numbered_item(0, 1, env_steps=6))
    assert ledger.balance() == [
        {"acted": 13, "in_flight": 0, "queued": 0, "learned": 7, "discarded": 6},
        {"acted": 5, "in_flight": 0, "queued": 0, "learned": 0, "discarded": 5},
    ]


def test_ledger_refuses_to_move_env_steps_that_are_not_there():
    ledger = Ledger(1)
    ledger.collect(0, 5)
    with pytest.raises(LedgerError, match="in queued to move to learned, got 0"):
        ledger.move(0, 5, "queued", "learned")


def test_staging_keeps_the_newest_networks_alone_unless_it_is_to_hold_more():
    staging = networks_deque()
    staging.append(0, "old")
    staging.append(1, "new")
    assert staging.take(None) == staging.take(1) == (1, "new"), "other actors get it too"
    assert staging.staged == [(1, "new")]


def test_staging_gives_exactly_the_version_while_newer_ones_are_there():
    staging = networks_deque(2)
    for version in range(3):
        staging.append(version, f"networks {version}")
    assert staging.take(1) == (1, "networks 1")
    assert staging.take(2) == staging.take(None) == (2, "networks 2")
    with pytest.raises(SequenceError, match="version 0 on the device, got versions 1 to 2"):
        staging.take(0)


def test_staging_waits_for_the_version():
    staging = networks_deque(3)
    staging.append(0, "old")
    got = []
    thread = start(lambda: got.append(staging.take(2)))
    for version in (1, 2, 3):
        staging.append(version, f"networks {version}")
    thread.join(60)
    assert got == [(2, "networks 2")]


def test_staging_refuses_a_version_that_is_not_newer():
    staging = networks_deque()
    staging.append(3, "networks")
    with pytest.raises(ValueError, match="after 3, got 3"):
        staging.append(3, "networks")


def test_closing_staging_ends_a_wait():
    staging = networks_deque()
    outcome = []

    def blocked():
        try:
            staging.take(0)
        except Closed:
            outcome.append("closed")

    thread = start(blocked)
    staging.close()
    thread.join(60)
    assert outcome == ["closed"]
