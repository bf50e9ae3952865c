"""The one end of a run: how it failed × how the environments' `close` behaves × mode."""

import itertools
import signal
import threading
import time
import types

import gymnasium
import numpy as np
import pytest

from sebulba.envs.closing import close_environments
from sebulba.ring.local_collector import LocalCollector
from sebulba.ring.run_end import RunEnd
from sebulba.run import ending, training
from tests.faults.runs import LONG_S, make_config, summary_of

pytestmark = pytest.mark.shares_programs

released = threading.Event()


class Closing(gymnasium.Env):
    """Raises, hangs or exits when it is closed; fails in a step if asked to."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, *, close: str, fail_at: int = 0):
        self._close = close
        self._steps_left = fail_at

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self._steps_left -= 1
        if self._steps_left == 0:
            raise RuntimeError("the simulator lost its mind")
        return np.zeros(3, np.float32), 1.0, False, False, {}

    def close(self):
        if self._close == "raise":
            raise OSError("the window is gone")
        if self._close == "hang":
            released.wait(LONG_S)
        if self._close == "exit":
            raise SystemExit(0)


gymnasium.register("Closing-v0", entry_point=Closing, disable_env_checker=True)

PROBLEMS = {
    "return": None,
    "raise": "OSError: the window is gone",
    "hang": "still running after 0.2 s (run.close_timeout_s)",
    "exit": "SystemExit: 0",
}
ENDS = {"goal": 0, "failure": 3, "signal": 128 + signal.SIGTERM}


@pytest.fixture(autouse=True)
def hanging_threads_end():
    released.clear()
    yield
    released.set()
    for thread in threading.enumerate():
        if thread.name.startswith("close of"):
            thread.join(LONG_S)


@pytest.mark.parametrize(
    ("end", "close", "mode"),
    [
        *itertools.product(ENDS, PROBLEMS, ["threads"]),
        *itertools.product(ENDS, ["hang"], ["serial"]),
    ],
)
def test_a_run_ends_as_its_cause_says_whatever_close_does(
    end, close, mode, tmp_path, monkeypatch, capsys
):
    ends = []
    monkeypatch.setattr(ending, "end_process", ends.append)
    if end == "signal":
        count = itertools.count()
        monkeypatch.setattr(RunEnd, "is_set", property(lambda self: _signalled(self, count)))
    options = {"close": close, "fail_at": 22 if end == "failure" else 0}
    config = make_config(
        tmp_path,
        env={"suite": "gymnasium", "id": f"{__name__}:Closing-v0", "options": options},
        run={"mode": mode, "close_timeout_s": 0.2 if close == "hang" else LONG_S},
    )
    began = time.monotonic()
    assert training.train_to_exit_code(config) == ENDS[end]
    assert time.monotonic() - began < LONG_S
    assert ends == ([ENDS[end]] if close == "hang" else [])
    error = capsys.readouterr().err
    summary = summary_of(tmp_path)
    words = {"goal": "done", "failure": "failed", "signal": "interrupted"}
    assert summary["status"] == words[end]
    problem = PROBLEMS[close]
    warning = "close of the environments of actor 0"
    assert (warning in error) == (problem is not None)
    if problem is not None:
        assert problem in error
    if end == "failure":
        last = error.splitlines()[-1]
        assert "the simulator lost its mind" in last
        assert "This happened in actor" in last
        assert (problem is None) or f"Also: {warning}" in last


def _signalled(end, count):
    """Whether the run has ended; a signal arrives at the third look."""
    if next(count) == 2:
        end.signal = end.received = signal.SIGTERM
    return end.goal or end.signal is not None or end.failure is not None


class Unstartable(Closing):
    """Fails before the run begins."""

    def __init__(self, *, where: str, error: str, close: str):
        super().__init__(close=close)
        self._error = {"raise": RuntimeError("no license"), "exit": SystemExit(0)}[error]
        self._where = where
        if where == "constructor":
            raise self._error

    def reset(self, *, seed=None, options=None):
        if self._where == "reset":
            raise self._error
        return super().reset(seed=seed)


gymnasium.register("Unstartable-v0", entry_point=Unstartable, disable_env_checker=True)


@pytest.mark.parametrize(
    ("where", "error", "close"),
    [("constructor", "exit", "return"), ("reset", "raise", "raise"), ("reset", "exit", "hang")],
)
def test_a_run_that_cannot_begin_says_why_whatever_close_does(
    where, error, close, tmp_path, capsys
):
    options = {"where": where, "error": error, "close": close}
    config = make_config(
        tmp_path,
        env={"suite": "gymnasium", "id": f"{__name__}:Unstartable-v0", "options": options},
        run={"close_timeout_s": 0.2},
    )
    assert training.train_to_exit_code(config) == 3
    last = capsys.readouterr().err.splitlines()[-1]
    cause = {"raise": "RuntimeError: no license", "exit": "SystemExit: 0"}[error]
    assert f"its {where} raised" in last or f"{where} raised" in last
    assert cause in last
    if PROBLEMS[close] is not None:
        assert f"Also: close of the environments of actor 0: {PROBLEMS[close]}" in last


@pytest.mark.parametrize("close", ["raise", "hang"])
def test_environments_that_fail_and_cannot_be_closed_are_recreated(
    close, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(ending, "end_process", lambda code: None)
    config = make_config(
        tmp_path,
        env={
            "suite": "gymnasium",
            "id": f"{__name__}:Closing-v0",
            "options": {"close": close, "fail_at": 60},
        },
        actor={"on_env_error": "restart", "threads_per_device": 1},
        run={"close_timeout_s": 0.2},
    )
    assert training.train_to_exit_code(config) == 0
    error = capsys.readouterr().err
    assert f"close of the environments of actor 0: {PROBLEMS[close]}" in error
    assert summary_of(tmp_path)["env_restarts"] == 1


@pytest.mark.parametrize("close", ["raise", "hang"])
def test_an_evaluation_whose_environments_cannot_be_closed_costs_a_warning(
    close, tmp_path, monkeypatch, capsys
):
    ends = []
    monkeypatch.setattr(ending, "end_process", ends.append)
    config = make_config(
        tmp_path,
        env={"suite": "gymnasium", "id": f"{__name__}:Closing-v0", "options": {"close": close}},
        evaluation={"interval_env_steps": 50, "episodes": 1, "max_episode_steps": 5},
        run={"close_timeout_s": 0.2},
    )
    warning = f"warning: close of the environments of the evaluation: {PROBLEMS[close]}"
    assert training.train_to_exit_code(config) == 0
    assert warning in capsys.readouterr().err
    assert summary_of(tmp_path)["status"] == "done"
    assert ends == ([0] if close == "hang" else [])


def test_a_run_has_its_summary_before_environments_are_closed(tmp_path, monkeypatch):
    """Native code may end the process in `close`."""
    summaries = []
    monkeypatch.setattr(
        LocalCollector, "close", lambda self: summaries.append(summary_of(tmp_path))
    )
    assert training.train_to_exit_code(make_config(tmp_path)) == 0
    assert {each["status"] for each in summaries} == {"done"}


def test_a_signal_ends_the_wait_for_environments_that_hang():
    hanging = types.SimpleNamespace(close=lambda: released.wait(LONG_S))
    [problem] = close_environments({"actor 0": hanging}, LONG_S, may_wait=lambda: False)
    assert problem.is_running
    assert "still running when a signal ended the wait" in str(problem)
