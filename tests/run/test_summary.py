"""Why a run has ended, and what its last lines say."""

import pathlib
import signal

import pytest

from sebulba.config import RunConfig
from sebulba.ring.progress import Progress
from sebulba.ring.run_end import RunEnd
from sebulba.run.remote_actors import describe_remote_actors
from sebulba.run.summary import describe_early_end, describe_reason, describe_result

GOAL = RunConfig(total_env_steps=500_000, stop_at_return=475.0)


@pytest.mark.parametrize(
    ("changes", "env_steps", "return_mean", "expected"),
    [
        ({"goal": True}, 264_511, 476.9, "the mean return reached 475"),
        ({"goal": True}, 500_224, 470.0, "the env steps reached 500,000"),
        ({"goal": True}, 500_224, None, "the env steps reached 500,000"),
        ({"goal": True}, 1_000, None, "a callback ended the run"),
        ({"signal": signal.SIGTERM}, 1_000, 480.0, "stopped by SIGTERM"),
        (
            {"failure": ArithmeticError("no such loss"), "received": signal.SIGINT},
            1_000,
            None,
            "ArithmeticError: no such loss",
        ),
    ],
)
def test_the_reason_of_the_end_is_named(changes, env_steps, return_mean, expected):
    end = RunEnd()
    vars(end).update(changes)
    progress = Progress(config=GOAL, end=end, clocks={"actor": [], "learner": []})
    progress.env_steps, progress.window.return_mean = env_steps, return_mean
    assert describe_reason(end, progress, GOAL) == expected


def test_the_result_is_said_in_three_short_lines():
    summary = {
        "reason": "the env steps reached 200,000,000",
        "env_steps": 200_001_536,
        "episodes": 57,
        "wall_time_s": 259_214.71,
        "startup_s": 23.44,
        "steps_per_second": 771.9,
        "final_episode_return_mean": 1_234.56,
        "best_episode_return_mean": 12_345.6,
        "episode_return_last": 4_321.0,
    }
    lines = describe_result(summary, return_window=100)
    assert lines == [
        "done: the env steps reached 200,000,000",
        "result: mean return in training 1,234.6 over 57 episodes, best 12,345.6; those are"
        " all so far, the first ones included; the newest has 4,321.0",
        "speed: 200,001,536 env steps in 259,214.7 s, 772 env steps/s after 23.4 s of start-up",
    ]
    few = {**summary, "final_episode_return_mean": None, "steps_per_second": None}
    assert describe_result(few, return_window=100)[1:] == [
        "result: too few episodes for a mean return: 57; the newest has 4,321.0",
        "speed: 200,001,536 env steps in 259,214.7 s",
    ]
    early = {**summary, "status": "interrupted", "updates": 1_234}
    assert describe_early_end(early, pathlib.Path("runs/a")) == (
        "interrupted: 1,234 updates, 200,001,536 env steps in 259,214.7 s, 772 env steps/s after"
        " 23.4 s of start-up; return 1,234.6, best 12,345.6; runs/a"
    )
    assert describe_early_end({**early, **few, "updates": 0}, pathlib.Path("runs/a")) == (
        "interrupted: 0 updates, 200,001,536 env steps in 259,214.7 s; no mean return yet; runs/a"
    )


def test_each_remote_actor_has_a_line_at_the_end():
    one = {
        "machine": "rack-7",
        "restarts": 2,
        "env_steps": 120_000,
        "steps_per_second": 1_203.4,
        "waits": 0.123,
        "bytes_sent": 1_200_000,
        "bytes_received": 4_000_200_000,
        "process_cpu_s": 0.0123,
        "thread_cpu_s": 0.0021,
    }
    early = {**one, "steps_per_second": None, "process_cpu_s": None, "machine": None}
    assert describe_remote_actors({2: one, 11: early}) == [
        "remote actors, with CPU milliseconds for a trajectory there and here:",
        "actor    steps/s  waits  restarts    MB out     MB in   there    here  machine",
        "    2      1,203    12%         2       1.2   4,000.2    12.3     2.1  rack-7",
        "   11          -    12%         2       1.2   4,000.2       -     2.1  -",
    ]
    assert describe_remote_actors({}) == []
