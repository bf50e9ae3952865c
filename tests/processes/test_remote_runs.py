"""Runs on other machines, whose holders die on command; no Ray is needed."""

import os
import signal

import pytest

from sebulba.errors import ConfigError
from sebulba.processes import remote_runs
from sebulba.processes.remote_process import ProcessGone, ProcessLost
from sebulba.processes.remote_runs import EXIT_LOST, RemoteRun, train_elsewhere
from sebulba.processes.runs import TrainingRun
from tests.processes.holders import RUNS, START, FakeHolder, reply


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr(remote_runs, "_POLL_S", 0.0)


def train(holders, *, num_jobs=None, on_start=lambda run, machine: None):
    """Train a run for each holder; return the exit code, the ends and what was said."""
    ends, said = {}, []

    def start(run):
        holder = holders[run.name]
        return RemoteRun(run.name, {}, holder, on_line=said.append, on_message=said.append)

    runs = [TrainingRun(name=name, directory=".", argv=()) for name in holders]
    code = train_elsewhere(
        runs,
        start=start,
        num_jobs=num_jobs or len(runs),
        on_start=on_start,
        on_end=lambda run, code: ends.update({run.name: code}),
    )
    return code, ends, said


def test_the_first_failure_is_the_exit_code_and_the_other_runs_go_on():
    holders = {"x": FakeHolder(START, reply(code=6)), "y": FakeHolder(START, reply(code=0))}
    code, ends, said = train(holders, num_jobs=1)
    assert (code, ends, said) == (6, {"x": 6, "y": 0}, [])
    assert all(each.is_killed for each in holders.values())  # They give back their CPUs.


def test_lines_of_output_come_whole_and_the_last_one_without_its_end():
    parts = (reply(output=b"one\ntw"), reply(output=b"o\nthr"), reply(output=b"ee", code=0))
    assert train({"x": FakeHolder(START, *parts)})[2] == ["one", "two", "three"]


def test_a_lost_run_is_resumed_on_another_machine_and_a_line_says_so():
    back = reply(is_start=True, machine="b")
    holder = FakeHolder(START, reply(), ProcessLost(), ProcessLost(), back, reply(code=0))
    started = []
    code, ends, said = train({"x": holder}, on_start=lambda run, machine: started.append(machine))
    assert (code, ends) == (0, {"x": 0})
    assert [is_again for is_again, _ in holder.asked] == [False, True, True, True, True, True]
    assert said == [
        "x: its process on a is lost or cannot be reached",
        "x: continues on b",
    ]
    assert started == ["a"]  # A run starts once.


def test_a_holder_that_is_reached_again_goes_on_with_the_run():
    holder = FakeHolder(START, ProcessLost(), reply(), reply(code=0))
    code, _, said = train({"x": holder})
    assert (code, said[-1]) == (0, "x: continues on a")


def test_a_holder_that_is_lost_before_the_run_began_begins_it():
    holder = FakeHolder(ProcessLost(), START, reply(code=0))
    assert train({"x": holder}) == (0, {"x": 0}, [])
    assert [is_again for is_again, _ in holder.asked] == [False, False, True]


def test_a_run_that_is_lost_too_often_ends_like_one_that_was_killed():
    holders = {
        "x": FakeHolder(START, ProcessLost(), ProcessGone("died 21 times")),
        "y": FakeHolder(START, reply(code=0)),
    }
    code, ends, said = train(holders)
    assert (code, ends) == (EXIT_LOST, {"x": 137, "y": 0})
    assert said[-1] == "x: lost: died 21 times"


def test_a_run_whose_process_is_gone_before_it_began_is_lost_and_the_others_go_on():
    holders = {
        "x": FakeHolder(ProcessGone("its node has died")),
        "y": FakeHolder(START, reply(code=0)),
    }
    code, ends, said = train(holders, num_jobs=1)
    assert (code, ends) == (EXIT_LOST, {"x": EXIT_LOST, "y": 0})
    assert said == ["x: lost: its node has died"]


@pytest.mark.parametrize(
    "answer", [{"problem": "--run-dir: not shared"}, ConfigError("Ray: expected Sebulba 9.9")]
)
def test_a_machine_that_cannot_run_it_ends_all_after_the_others_have_saved(answer):
    others = FakeHolder(START, RUNS)
    holders = {
        "y": others,
        "x": FakeHolder(answer),
        "z": FakeHolder(),
    }
    with pytest.raises(ConfigError, match=r"--run-dir: not shared|Ray: expected Sebulba"):
        train(holders)
    assert [sent for _, sent in others.asked if sent] == [[signal.SIGTERM]]
    assert all(each.is_killed for each in holders.values())


def test_a_signal_reaches_runs_that_have_begun_and_no_other_one_begins():
    begun, waits, lost = FakeHolder(START, RUNS), FakeHolder(), FakeHolder(START, ProcessLost())
    started = []

    def on_start(run, machine):
        started.append(run.name)
        if len(started) == 2:
            os.kill(os.getpid(), signal.SIGINT)

    holders = {"begun": begun, "waits": waits, "lost": lost, "later": FakeHolder()}
    code, ends, _ = train(holders, num_jobs=3, on_start=on_start)
    assert (code, ends) == (130, {"begun": 130, "lost": 130})
    assert waits.is_killed and not holders["later"].asked


def test_a_signal_is_the_exit_code_if_it_prevents_a_run_and_no_other_has_failed():
    holders = {"x": FakeHolder(START, reply(code=0)), "y": FakeHolder()}
    kill = lambda run, machine: os.kill(os.getpid(), signal.SIGTERM)  # noqa: E731
    assert train(holders, num_jobs=1, on_start=kill)[:2] == (143, {"x": 0})
