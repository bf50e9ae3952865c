"""The command that measures what a policy lag costs."""

import importlib.util
import json
import os
import signal

import pytest

from sebulba.config.loading import load_config
from sebulba.errors import ConfigError
from sebulba.lag import draw_lags, main, parse_lags, report_lags, summarize_lags
from tests.run_directories import make_run
from tests.subprocesses import run_python, started, wait_for

CATCH = "configs/impala_catch.yaml"


def test_the_runs_are_every_lag_with_every_setting_and_seed_and_none_stops_at_the_goal(tmp_path):
    argv = [CATCH, "--lags", "0,4", "--seeds", "0..1", "--agent.clip-c", "0.5,1"]
    argv += ["--run.stop_at_return", "0.7", "--run-dir", str(tmp_path)]
    points = parse_lags(argv).points
    configs = [load_config(point.argv[0], point.argv[1:]) for point in points]
    assert {(c.policy_lag, c.agent.clip_c, c.seed) for c in configs} == {
        (lag, clip, seed) for lag in (0, 4) for clip in (0.5, 1.0) for seed in (0, 1)
    }
    assert len(points) == 8
    assert {c.run.stop_at_return for c in configs} == {None}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([CATCH, "--lags", "0,auto"], "--lags: expected integers as 0,1,4, got '0,auto'"),
        ([CATCH, "--learner.policy-lag", "1"], "Set --lags"),
        ([CATCH, "--learner.policy_lag=1"], "Set --lags"),
        ([CATCH, "--run.stop-at-return", "high"], "run.stop-at-return"),
        ([CATCH, "--run.stop_at_return", "high"], "run.stop-at-return"),
        (["configs/a2c_cartpole.yaml"], "learner.allow_uncorrected_lag true"),
    ],
)
def test_a_wrong_command_line_is_an_error_that_names_the_flag(arguments, message):
    with pytest.raises(ConfigError, match=message):
        parse_lags(arguments)


def make_sweep(path, returns_by_run):
    """Return the sweep of lags 0 and 4 whose runs have these mean returns, one every 100 steps."""
    argv = [CATCH, "--lags", "0,4", "--seeds", "0..3", "--run.total-env-steps", "400"]
    sweep = parse_lags([*argv, "--run-dir", str(path)])
    for point, returns in zip(sweep.points, returns_by_run, strict=True):
        make_run(point.directory, returns=returns)
    return sweep


CURVES = [(None, 1.0, 2.0, 3.0 + seed) for seed in range(4)]
CURVES += [(0.0, 0.0, 0.5, float(seed)) for seed in range(4)]


def test_returns_are_compared_at_equal_env_steps_and_the_goal_by_the_first_row_above(tmp_path):
    without_lag, lagging = summarize_lags(make_sweep(tmp_path, CURVES), goal=2.0)
    assert (without_lag["lag"], lagging["lag"]) == (0, 4)
    quarter, half, end = without_lag["returns"]
    assert (quarter["env_steps"], quarter["values"], quarter["iqm"]) == (100, [], None)
    assert (half["env_steps"], half["values"]) == (200, [1.0] * 4)
    assert (end["values"], end["iqm"]) == ([3.0, 4.0, 5.0, 6.0], 4.5)
    assert 3.0 <= end["low"] < 4.5 < end["high"] <= 6.0
    assert (without_lag["goal"]["reached"], without_lag["goal"]["env_steps"]) == (4, [300.0] * 4)
    # Two of the lagging runs never reach it, and count with all their env steps.
    assert (lagging["goal"]["reached"], lagging["goal"]["env_steps"]) == (2, [400.0] * 4)


def test_the_table_says_how_many_seeds_reached_the_goal(tmp_path, capsys):
    report_lags(make_sweep(tmp_path, CURVES), goal=2.0)
    text = capsys.readouterr().out
    assert "≥ 400 [400, 400], reached by 2 of 4" in text
    assert "12,346" in text  # env steps per second, in a table of their own
    stored = json.loads((tmp_path / "lag.json").read_text())
    assert "12345.6" not in json.dumps(stored)
    assert "12345.6" in (tmp_path / "lag_speed.json").read_text()
    has_picture = importlib.util.find_spec("matplotlib") is not None
    assert (tmp_path / "lag.png").exists() == has_picture


def test_the_figure_has_a_line_for_each_setting_and_an_interval_at_each_lag(tmp_path):
    pytest.importorskip("matplotlib")
    rows = summarize_lags(make_sweep(tmp_path, CURVES), goal=2.0)
    returns, goals = draw_lags({"one": rows, "other": rows}).axes
    assert [text.get_text() for text in returns.get_legend().get_texts()] == ["one", "other"]
    (line,) = [line for line in returns.lines if line.get_label() == "one"]
    assert list(line.get_ydata()) == [4.5, 1.5]
    assert len(returns.lines) == len(goals.lines) == 2 * (1 + 2)
    assert [label.get_text() for label in returns.get_xticklabels()] == ["0", "4"]


def test_help_says_what_the_command_writes_without_importing_jax(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["sebulba.lag", "--help"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    assert "lag_speed.json" in capsys.readouterr().out


@pytest.mark.slow
def test_a_repeated_and_a_killed_and_resumed_study_give_the_same_numbers(tmp_path):
    command = ["-m", "sebulba.lag", CATCH, "--lags", "0,3", "--seeds", "0..1"]
    command += ["--run.total-env-steps", "30000", "--run.mode", "anakin"]
    command += ["--actor.threads-per-device", "1", "--checkpoint.interval-s", "0.2"]
    command += ["--devices.actor", "[0]", "--devices.learner", "[0]"]
    results = []
    for name in ("once", "again", "killed"):
        argv = [*command, "--run-dir", tmp_path / name]
        if name == "killed":
            second = tmp_path / name / "learner.policy-lag=0,seed-1"
            with started(*argv) as process:
                wait_for(lambda at=second: (at / "checkpoints").is_dir(), process)
                os.killpg(process.pid, signal.SIGKILL)
            assert not (tmp_path / name / "lag.json").exists()
        ended = run_python(*argv)
        assert ended.returncode == 0, ended.stderr
        results.append((tmp_path / name / "lag.json").read_bytes())
    assert results[0] == results[1] == results[2]
