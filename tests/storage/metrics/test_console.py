import io
import logging
import re
import sys

import pytest

from sebulba.config import RunConfig
from sebulba.storage.metrics.console import Console, LogDisplay


class FakeTerminal(io.StringIO):
    def isatty(self):
        return True


class FakeClock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    return FakeTerminal()


def row(env_steps, **changes):
    return {
        "env_steps": env_steps,
        "learner_cycles": env_steps // 500,
        "steps_per_second": 94_211.2,
        "episode_return_mean": 187.3,
        "episodes": 250,
        "time/actor/act": 0.9,
        "time/learner/wait for trajectories": 0.7,
        "time/learner/update": 0.3,
    } | changes


STEPS = RunConfig(total_env_steps=500_000)
RETURN = RunConfig(total_env_steps=500_000, stop_at_return=475.0)


def lines_of(*rows, goal=STEPS):
    """Return the lines of a log file that shows the rows."""
    stream, clock = io.StringIO(), FakeClock()
    console = Console(goal, stream, clock=clock)
    for each in rows:
        clock.now += 60
        console.update(each)
    console.close()
    return stream.getvalue().splitlines()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "return 187.3               94,211 steps/s  actor-bound    0:04 left"),
        (
            {"steps_per_second": None, "time/actor/wait for queue": 0.6},
            "return 187.3                    - steps/s  actor-bound",
        ),
        (
            {"episode_return_mean": -0.25, "steps_per_second": 10.0},
            "return -0.25                   10 steps/s  actor-bound    10:33:20 left",
        ),
        (
            {"episode_return_mean": float("nan"), "steps_per_second": 0.0},
            "return nan                      0 steps/s  actor-bound",
        ),
        (
            {"episode_return_mean": 23_456.7, "time/learner/wait for trajectories": 0.1},
            "return 23,457              94,211 steps/s  balanced       0:04 left",
        ),
        (
            {"episode_return_mean": None, "episodes": 12},
            "12 episodes so far         94,211 steps/s  actor-bound    0:04 left",
        ),
        (
            {"episode_return_mean": 21.0, "episodes": 32},
            "return 21.0 over 32 episodes     94,211 steps/s  actor-bound    0:04 left",
        ),
    ],
)
def test_a_line_shows_a_row(changes, expected):
    assert lines_of(row(120_000, **changes)) == [f"   24%  120,000 env steps  {expected}"]


@pytest.mark.parametrize(
    ("machines", "rates", "restarts", "expected"),
    [
        ("ab", [1_234.0, 15_678.0], [0, 0], "2 remote: 1,234/s–15.7k/s"),
        ("a", [1_234.0], [1], "1 remote: 1,234/s, 1 restart"),
        ("ab", [0.0, 20.0], [2, 1], "2 remote: 0/s–20/s, 3 restarts"),
        ("ab", [None, None], [0, 0], "2 remote"),
        (["a", None], [1_234.0, 0.0], [0, 0], "1 of 2 remote: 1,234/s"),
        ([None, None], [0.0, 0.0], [0, 0], "0 of 2 remote"),
    ],
)
def test_a_line_shows_the_slowest_and_the_fastest_remote_actor_of_those_that_have_joined(
    machines, rates, restarts, expected
):
    remote = {
        f"remote_actor/{actor}/{key}": value
        for key, values in (
            *(("machine", machines), ("steps_per_second", rates)),
            ("restarts", restarts),
        )
        for actor, value in enumerate(values)
    }
    (line,) = lines_of(row(120_000, **remote))
    assert line.endswith(f"0:04 left  {expected}")


def test_a_line_counts_episodes_if_they_are_the_goal():
    goal = RunConfig(total_env_steps=500_000, total_episodes=1_000)
    lines = lines_of(row(120_000, episodes=900), row(120_000, episodes=240), goal=goal)
    assert lines[0].startswith("   90%  120,000 env steps    900 episodes  return 187.3")
    assert lines[0].endswith("≤ 0:04 left")
    assert lines[1].startswith("   24%  120,000 env steps    240 episodes")


def test_progress_and_time_left_are_those_to_the_learner_cycles_if_they_end_the_run():
    goal = RunConfig(total_env_steps=10**9, total_learner_cycles=1_000)
    (line,) = lines_of(row(120_000, learner_cycles=240), goal=goal)
    assert line.split()[0] == "24%"
    assert line.endswith(" 0:04 left") and "≤" not in line


def test_a_line_shows_the_change_of_the_return_since_the_line_before():
    first, second, third = lines_of(
        row(10_000),
        row(20_000, episode_return_mean=199.4),
        row(30_000, episode_return_mean=198.9),
    )
    assert "return 187.3  " in first
    assert "return 199.4 (+12.1)" in second
    assert "return 198.9 (-0.50)" in third


def test_progress_is_that_to_the_env_steps_or_to_the_return_whichever_is_greater():
    lines = lines_of(
        row(100_000, episode_return_mean=None),
        row(100_000, episode_return_mean=-25.0),
        row(150_000, episode_return_mean=225.0),
        row(400_000, episode_return_mean=125.0),
        row(400_000, episode_return_mean=480.0),
        goal=RETURN,
    )
    assert [line.split()[0] for line in lines] == ["20%", "20%", "50%", "80%", "100%"]
    assert lines[2].endswith("≤ 0:04 left")  # The return may be reached earlier.
    assert "left" not in lines[4]


def test_plain_console_shows_a_row_every_two_seconds_and_the_last_one():
    stream, clock = io.StringIO(), FakeClock()
    console = Console(STEPS, stream, clock=clock)
    for clock.now, env_steps in ((0.0, 0), (1.0, 10_000), (2.0, 120_000), (3.9, 500_000)):
        console.update(row(env_steps))
    console.message("to resume from it:", command="sebulba train --run-dir runs/cartpole")
    console.close()
    console.close()
    lines = stream.getvalue().splitlines()
    assert lines.pop(2) == "to resume from it: sebulba train --run-dir runs/cartpole"
    shown = [re.search(r"([\d,]+) env steps", line)[1] for line in lines]
    assert shown == ["0", "120,000", "500,000"]
    assert not {"\x1b", "\r"} & set(stream.getvalue())


def test_details_are_shown_by_a_verbose_console_only(caplog):
    shown = {}
    for verbose in (False, True):
        stream = io.StringIO()
        Console(STEPS, stream, verbose=verbose).detail("memory: 1 KiB")
        shown[verbose] = stream.getvalue()
    assert shown == {False: "", True: "memory: 1 KiB\n"}
    with caplog.at_level(logging.INFO, "sebulba"):
        LogDisplay().detail("memory: 1 KiB")
        LogDisplay().message("to resume:", command="sebulba train")
    assert caplog.messages == ["to resume: sebulba train"]


@pytest.mark.parametrize(("hours", "expected"), [(1, 390), (10, 940)])
def test_plain_console_of_a_long_run_stays_short(hours, expected):
    stream, clock = io.StringIO(), FakeClock()
    console = Console(RunConfig(total_env_steps=10**9), stream, clock=clock)
    for clock.now in range(hours * 3600):
        console.update(row(int(clock.now)))
    assert len(stream.getvalue().splitlines()) == pytest.approx(expected, rel=0.1)


def test_live_console_shows_the_newest_row_on_a_terminal(terminal):
    clock = FakeClock()
    console = Console(STEPS, terminal, clock=clock)
    console.update(row(120_000))
    console.update(row(130_000))  # shown later
    shown = terminal.getvalue()
    console.message("[saved] checkpoint 3")
    console.close()
    console.close()
    console.message("after the end")
    status = "24% return 187.3  120k steps  94.2k/s  actor-bound  0:04 left"
    assert status in without_colours(shown)
    assert "130k" not in shown
    assert "130k steps" in terminal.getvalue()
    assert "[saved] checkpoint 3\n" in terminal.getvalue()
    assert terminal.getvalue().endswith("after the end\n")


def test_live_console_releases_the_terminal(terminal):
    streams = sys.stdout, sys.stderr
    console = Console(RunConfig(total_env_steps=100), terminal)
    console.update(row(50))
    console.close()
    assert (sys.stdout, sys.stderr) == streams
    hide_cursor, show_cursor = "\x1b[?25l", "\x1b[?25h"
    assert terminal.getvalue().rindex(show_cursor) > terminal.getvalue().rindex(hide_cursor)


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (80, "━  24% return 187.3  120k steps  94.2k/s  actor-bound  0:04 left"),
        (60, "━  24% return 187.3  120k steps  94.2k/s"),  # whole fields only
        (30, "━━  24% return 187.3"),
    ],
)
def test_live_console_stays_on_one_line(columns, expected, terminal, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    console = Console(STEPS, terminal)
    console.update(row(120_000))
    shown = without_colours(terminal.getvalue())
    assert "\n" not in shown
    line = shown.split("\r")[-1].rstrip()
    assert line.endswith(expected)
    assert len(line) <= columns
    console.close()


def test_live_console_breaks_text_between_words_and_commands_nowhere(terminal, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    console = Console(STEPS, terminal)
    console.close()
    terminal.truncate(0)
    console.message("evaluate:", command="sebulba evaluate runs/a")
    command = "sebulba train --run-dir runs/impala-CartPole-v1 --resume latest"
    console.message("the disk is full; see docs/troubleshooting.md: to resume:", command=command)
    assert without_colours(terminal.getvalue()).strip("\0").splitlines() == [
        "evaluate: sebulba evaluate runs/a",
        "the disk is full; see",
        "docs/troubleshooting.md: to resume:",
        f"  {command}",
    ]


def test_live_console_is_not_used_on_a_dumb_terminal(terminal, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    console = Console(STEPS, terminal)
    console.update(row(120_000))
    assert terminal.getvalue() == "".join(f"{line}\n" for line in lines_of(row(120_000)))


@pytest.mark.parametrize("stream_type", [io.StringIO, FakeTerminal])
def test_console_whose_stream_fails_does_not_stop_training(monkeypatch, stream_type):
    monkeypatch.setenv("TERM", "xterm")
    streams = sys.stdout, sys.stderr
    stream = stream_type()
    console = Console(RunConfig(total_env_steps=100), stream)
    stream.close()
    console.update(row(1))
    console.message("text")
    console.close()
    assert (sys.stdout, sys.stderr) == streams


def without_colours(text):
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
