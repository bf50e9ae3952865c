"""Interleaving, ratios within a repeat, and the JSON file."""

import itertools
import json
import pathlib

import pytest

from benchmarks import harness
from benchmarks.harness import Result, Series, Timed


def test_interleave_warms_up_and_reverses_every_second_repeat():
    calls = []

    def work(name):
        calls.append(name)
        return Timed(amount=2.0, seconds=4.0)

    rates = harness.interleave({name: lambda name=name: work(name) for name in "ab"}, 3)
    assert calls == ["a", "b", "a", "b", "b", "a", "a", "b"]
    assert rates == {"a": Series(values=(0.5,) * 3), "b": Series(values=(0.5,) * 3)}


def test_interleave_divides_by_the_time_of_each_run(monkeypatch):
    # The first run takes 2 s, the second 5 s.
    monkeypatch.setattr(
        harness.time, "perf_counter", itertools.cycle((0.0, 2.0, 2.0, 7.0)).__next__
    )
    rates = harness.interleave({"a": lambda: 10}, 2)
    assert rates["a"].values == (5.0, 2.0)


@pytest.mark.parametrize(
    ("argv", "config", "flags"),
    [
        (["mine.yaml", "--run.mode", "threads", "--repeats", "6"], "mine.yaml", ["threads"]),
        (["--run.mode", "threads", "--repeats", "6"], "default.yaml", ["threads"]),
        (["--repeats", "6"], "default.yaml", []),
    ],
)
def test_a_command_line_begins_with_a_config_or_has_none(monkeypatch, argv, config, flags):
    monkeypatch.setattr("sys.argv", ["benchmark", *argv])
    arguments, *rest = harness.parse_with_config(
        harness.parser("A benchmark."), pathlib.Path("default.yaml")
    )
    assert arguments.repeats == 6
    assert rest == [config, [*("--run.mode" for _ in flags), *flags]]


def test_ratios_are_taken_within_each_repeat():
    # The ratio of the medians would be 1.
    fast, slow = Series(values=(4.0, 2.0, 1.0)), Series(values=(1.0, 2.0, 4.0))
    assert fast.over(slow).values == (4.0, 1.0, 0.25)


def test_serial_limit_is_the_rate_of_all_parts_in_sequence():
    limit = harness.serial_limit(Series(values=(200.0, 100.0)), Series(values=(200.0, 300.0)))
    assert limit.values == (100.0, 75.0)


def test_report_prints_a_table_and_writes_stamp_and_figures(tmp_path, capsys):
    result = Result(
        name="x",
        unit="things/s",
        rates={"a": Series(values=(1.0, 3.0, 2.0))},
        ratios={"a / b": Series(values=(0.5, 0.7, 0.6))},
        settings={"T": 5},
        microseconds={"a step": Series(values=(41.0, 42.5, 44.0))},
    )
    harness.report([result], tmp_path / "x.json")
    written = json.loads((tmp_path / "x.json").read_text())
    assert {"devices", "versions", "cpu_count", "commit", "load_average"} <= set(written["stamp"])
    (entry,) = written["results"]
    assert entry["settings"] == {"T": 5}
    assert entry["rates"]["a"] == {
        "median": 2.0,
        "low": 1.0,
        "high": 3.0,
        "values": [1.0, 3.0, 2.0],
    }
    assert entry["microseconds"]["a step"]["median"] == 42.5
    printed = capsys.readouterr().out
    assert "2.0" in printed and "1.0 – 3.0" in printed and "0.600" in printed
    (line,) = (line for line in printed.splitlines() if line.startswith("  a step"))
    assert line.endswith("42.5                  41.0 – 44.0  µs")


def test_parser_requires_five_repeats(capsys):
    with pytest.raises(SystemExit):
        harness.parser("x").parse_args(["--repeats", "4"])
    assert "expected at least 5" in capsys.readouterr().err
