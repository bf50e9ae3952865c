import io
import re
import sys

import pytest

from sebulba.storage.metrics.console import Console, plain_line


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
        "steps_per_second": 94_211.2,
        "episode_return_mean": 187.3,
        "policy_lag_mean": 1.2,
        "queue_depth": 2,
    } | changes


LINE = "  {:>7} env steps    94,211 steps/s   return 187.3   lag 1.2   queue 2   ETA 0:00:0{}\n"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "94,211 steps/s   return 187.3   lag 1.2   queue 2   ETA 0:00:04"),
        (
            {"episode_return_mean": None, "policy_lag_mean": None, "steps_per_second": None},
            "     - steps/s   return     -   lag -   queue 2   ETA -",
        ),
        (
            {"episode_return_mean": -0.25, "policy_lag_mean": 0.0, "steps_per_second": 10.0},
            "    10 steps/s   return -0.25   lag 0.00   queue 2   ETA 10:33:20",
        ),
        (
            {"episode_return_mean": float("nan"), "steps_per_second": 0.0, "queue_depth": 1.5},
            "     0 steps/s   return   nan   lag 1.2   queue 1.5   ETA -",
        ),
        (
            {"episode_return_mean": 23_456.7},
            "94,211 steps/s   return 23,457   lag 1.2   queue 2   ETA 0:00:04",
        ),
    ],
)
def test_plain_line_shows_a_row(changes, expected):
    assert plain_line(row(120_000, **changes), 500_000) == f"  120,000 env steps    {expected}"


def test_plain_console_shows_a_row_every_two_seconds_and_the_last_one():
    stream, clock = io.StringIO(), FakeClock()
    console = Console(500_000, stream, clock=clock)
    for clock.now, env_steps in ((0.0, 0), (1.0, 10_000), (2.0, 120_000), (3.9, 500_000)):
        console.update(row(env_steps))
    console.message("saved checkpoint 3")
    console.close()
    console.close()
    assert stream.getvalue() == (
        LINE.format("0", 5)
        + LINE.format("120,000", 4)
        + "saved checkpoint 3\n"
        + LINE.format("500,000", 0)
    )


@pytest.mark.parametrize(("hours", "expected"), [(1, 390), (10, 940)])
def test_plain_console_of_a_long_run_stays_short(hours, expected):
    stream, clock = io.StringIO(), FakeClock()
    console = Console(10**9, stream, clock=clock)
    for clock.now in range(hours * 3600):
        console.update(row(int(clock.now)))
    assert len(stream.getvalue().splitlines()) == pytest.approx(expected, rel=0.1)


def test_live_console_shows_the_newest_row_on_a_terminal(terminal):
    clock = FakeClock()
    console = Console(500_000, terminal, clock=clock)
    console.update(row(120_000))
    console.update(row(130_000))  # shown later
    shown = terminal.getvalue()
    console.message("[saved] checkpoint 3")
    console.close()
    console.close()
    console.message("after the end")
    status = "24% ETA 0:00:04  120,000 steps  94,211/s  return 187.3  lag 1.2  queue 2"
    assert status in without_colours(shown)
    assert "130,000" not in shown
    assert "130,000 steps" in terminal.getvalue()
    assert "[saved] checkpoint 3\n" in terminal.getvalue()
    assert terminal.getvalue().endswith("after the end\n")


def test_live_console_releases_the_terminal(terminal):
    streams = sys.stdout, sys.stderr
    console = Console(100, terminal)
    console.update(row(50))
    console.close()
    assert (sys.stdout, sys.stderr) == streams
    hide_cursor, show_cursor = "\x1b[?25l", "\x1b[?25h"
    assert terminal.getvalue().rindex(show_cursor) > terminal.getvalue().rindex(hide_cursor)


def test_live_console_keeps_bar_and_percentage_on_a_terminal_of_80_columns(terminal, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    console = Console(500_000, terminal)
    console.update(row(120_000))
    line = without_colours(terminal.getvalue()).split("\r")[-1]
    assert line.endswith(
        "  24% ETA 0:00:04  120,000 steps  94,211/s  return 187.3  lag 1.2  queue 2"
    )
    assert len(line) == 80
    console.close()


def test_live_console_stays_on_one_line_of_a_narrow_terminal(terminal, monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    console = Console(500_000, terminal)
    console.update(row(120_000))
    shown = without_colours(terminal.getvalue())
    assert "\n" not in shown
    assert len(shown.split("\r")[-1]) == 30
    console.close()


def test_live_console_is_not_used_on_a_dumb_terminal(terminal, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    console = Console(500_000, terminal)
    console.update(row(120_000))
    assert terminal.getvalue() == LINE.format("120,000", 4)


@pytest.mark.parametrize("stream_type", [io.StringIO, FakeTerminal])
def test_console_whose_stream_fails_does_not_stop_training(monkeypatch, stream_type):
    monkeypatch.setenv("TERM", "xterm")
    streams = sys.stdout, sys.stderr
    stream = stream_type()
    console = Console(100, stream)
    stream.close()
    console.update(row(1))
    console.message("text")
    console.close()
    assert (sys.stdout, sys.stderr) == streams


def without_colours(text):
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
