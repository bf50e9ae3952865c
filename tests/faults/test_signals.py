"""Signals that stop a run, once and twice."""

import ctypes
import functools
import itertools
import signal
import threading
import time
import types

import gymnasium
import numpy as np
import pytest

from sebulba.ring import run_end, threads
from sebulba.ring.clocks import COMPILE, MAKE_ENVIRONMENTS, UPDATE, WallClock
from sebulba.ring.run_end import RunEnd
from sebulba.ring.threads import Threads
from sebulba.run.training import train_to_exit_code
from sebulba.storage.checkpoints.restore import steps_in
from tests.disturbances import before, set_stop_deadlines
from tests.faults.hanging import SLOW_UPDATE_S
from tests.faults.runs import ENDLESS, last_line, make_config, summary_of
from tests.run.resuming import training
from tests.subprocesses import DEADLINE_S, wait_for
from tests.toys import ToyAgent

pytestmark = pytest.mark.shares_programs


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_second_signal_ends_a_run_at_once_with_its_older_checkpoint_intact(number, tmp_path):
    config, run_dir = tmp_path / "config.yaml", tmp_path / "run"
    config.write_text(ENDLESS)
    with training(config, run_dir) as process:
        wait_for(lambda: steps_in(run_dir / "checkpoints"), process)
        process.send_signal(number)
        process.send_signal(number)
        process.communicate(timeout=DEADLINE_S)
    # The second may come when the first has ended the run already.
    assert process.returncode in (-number, 128 + number)
    step = steps_in(run_dir / "checkpoints")[-1]
    arguments = ("--resume", "latest", "--run.total-env-steps", "1")
    with training(config, run_dir, *arguments) as process:
        _, error = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, error
    assert f"resumes at cycle {step} (exact" in error


def test_a_signal_that_has_to_wait_for_the_gil_is_not_lost():
    is_polling, end = threading.Event(), RunEnd()
    is_over = threading.Event()
    outlasted = []

    def hold_the_gil_beyond_a_poll():
        is_polling.wait()
        time.sleep(0.2 * threads._POLL_S)  # The running waits by now.
        signal.setitimer(signal.ITIMER_REAL, 0.2 * threads._POLL_S)
        ctypes.PyDLL(None).usleep(int(2e6 * threads._POLL_S))
        outlasted.append(not is_over.wait(60))

    running = Threads()
    previous = signal.signal(signal.SIGALRM, end.receive)
    try:
        running.start("busy", hold_the_gil_beyond_a_poll, WallClock())
        running.wait("busy", end, is_polling.set)
        is_over.set()
        assert running.join(60) is None
    finally:
        signal.signal(signal.SIGALRM, previous)
    assert outlasted == [False]


@pytest.mark.parametrize("longest_s", [0.0, 600.0])
def test_a_stop_waits_for_an_update_that_takes_no_longer_than_before(longest_s):
    released = threading.Event()
    clock = WallClock()
    clock.longest[UPDATE] = longest_s
    clock.begin(UPDATE)
    running = Threads()
    running.start("learner", released.wait, clock)
    timer = threading.Timer(0.1, released.set)
    try:
        if longest_s:
            timer.start()
            assert running.join(0.0) is None
        else:
            assert "learner did not end within 0 s" in str(running.join(0.0))
    finally:
        released.set()
        timer.cancel()


def test_a_stop_leaves_time_to_record_an_update_that_ended_late(monkeypatch):
    calls = itertools.count()
    released, is_recording, recorded = threading.Event(), threading.Event(), threading.Event()
    clock = WallClock()

    def late_after_the_first_call():
        call = next(calls)
        if call == 2:
            released.set()
            is_recording.wait()
        elif call == 4:
            recorded.set()
        return 100.0 if call else 0.0

    def update_and_record():
        released.wait()
        clock.current = None
        is_recording.set()
        recorded.wait()

    clock.longest[UPDATE] = 600.0
    clock.current = (UPDATE, 0.0)
    running = Threads()
    running.start("learner", update_and_record, clock)
    now = types.SimpleNamespace(perf_counter=late_after_the_first_call)
    monkeypatch.setattr(threads, "time", now)
    try:
        assert running.join(7.0) is None
    finally:
        for event in (released, recorded):
            event.set()


def test_a_run_that_is_stopped_in_its_second_slow_update_saves_it(tmp_path, monkeypatch):
    learners = []
    set_stop_deadlines(monkeypatch, deadline_s=0.5 * SLOW_UPDATE_S)
    before("update", learners.append, setattr=monkeypatch.setattr)

    def is_in_second_update(self):
        for learner in learners[1:]:  # The same one, once for each of its cycles.
            current = learner.clock.current
            if learner.num_cycles == 1 and current is not None and current[0] == UPDATE:
                self.signal = signal.SIGTERM
        return self.signal is not None

    monkeypatch.setattr(RunEnd, "closes_at_once", property(is_in_second_update))
    config = make_config(
        tmp_path,
        agent="tests.faults.hanging:SlowToLearn",
        actor={"threads_per_device": 1},
        checkpoint={"interval_s": 3600},
    )
    assert train_to_exit_code(config) == 128 + signal.SIGTERM
    assert steps_in(tmp_path / "checkpoints")[-1] == 2


@pytest.mark.parametrize(
    ("activity", "what"), [(COMPILE, "compiling"), (MAKE_ENVIRONMENTS, "making environments")]
)
@pytest.mark.parametrize("awaits", [False, True])
def test_a_run_at_its_goal_waits_for_an_actor_that_compiles_or_makes_environments(
    awaits, activity, what
):
    """Without the actor's state, the last learner cycles would not be saved."""
    released = threading.Event()
    clock = WallClock()
    clock.begin(activity)
    running = Threads()
    running.start("actor 0", released.wait, clock)
    polls = itertools.count()

    def may_compile(seconds):
        assert seconds >= 0.0
        if awaits and next(polls) == 2:
            released.set()
        return awaits

    try:
        stuck = running.join(1e-3, may_compile=may_compile)
        if not awaits:
            assert f"actor 0 still {what}" in str(stuck)
        assert (stuck is None) == awaits
    finally:
        released.set()


def test_a_signal_after_the_summary_says_why_the_run_ended_only_ends_the_waiting():
    with RunEnd().listening() as end:
        end.goal = True
        end.finalize()
        signal.raise_signal(signal.SIGINT)
    assert end.has_late_signal
    assert end.status == "done"


def test_only_a_second_signal_a_second_later_ends_the_process_at_once(monkeypatch):
    ended, now = [], types.SimpleNamespace()
    monkeypatch.setattr(run_end, "time", now)
    monkeypatch.setattr(run_end, "end_interrupted", lambda text, number: ended.append(number))
    with RunEnd().listening() as end:
        for seconds in (7.0, 7.9, 8.1):
            assert ended == []
            now.monotonic = functools.partial(float, seconds)
            signal.raise_signal(signal.SIGTERM)
    assert end.signal == signal.SIGTERM
    assert ended == [signal.SIGTERM]


class Terminated(gymnasium.Env):
    """Ends as its worker process would, if a signal reached all processes of the run."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    num_steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.num_steps += 1
        if self.num_steps == 12:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGTERM)
            raise EOFError
        return np.zeros(3, np.float32), 1.0, False, False, {}


gymnasium.register("Terminated-v0", entry_point=Terminated, disable_env_checker=True)


@pytest.mark.parametrize("mode", ["threads", "serial"])
def test_a_signal_that_ends_the_environments_too_interrupts_the_run(mode, tmp_path):
    env = {"suite": "gymnasium", "id": f"{__name__}:Terminated-v0"}
    assert train_to_exit_code(make_config(tmp_path, env=env, run={"mode": mode})) == 143
    assert summary_of(tmp_path)["status"] == "interrupted"
    assert steps_in(tmp_path / "checkpoints")[-1] >= 1


class FailsWhileItStops(ToyAgent):
    """Fails in the cycle in which a signal stops the run, once nobody waits for the learner."""

    def num_updates_per_cycle(self, cycle):
        if cycle == 3:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGTERM)
            time.sleep(2 * threads._POLL_S)
            raise ArithmeticError("too late")
        return 1


def test_a_learner_that_fails_after_the_signal_is_a_failure(tmp_path, capsys):
    """Its state, half a cycle, is not saved."""
    config = make_config(tmp_path, agent=f"{__name__}:FailsWhileItStops")
    assert train_to_exit_code(config) == 3
    assert "ArithmeticError: too late" in last_line(capsys)
