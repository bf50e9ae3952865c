"""The table at the end of all benchmarks."""

import json

from benchmarks import all as all_benchmarks


def test_the_table_has_the_median_of_ratios_within_repeats(tmp_path):
    rates = {
        "threads": {"median": 30.0, "values": [20.0, 30.0, 80.0]},
        "serial": {"median": 20.0, "values": [10.0, 20.0, 100.0]},
    }
    document = {"results": [{"name": "overlap", "rates": rates}]}
    (tmp_path / "overlap.json").write_text(json.dumps(document))
    heading, line = all_benchmarks.summary(tmp_path, ["overlap"])
    assert heading.split() == ["part", "figure", "limit", "ratio", "what", "binds"]
    assert line.split()[:4] == ["overlap", "30", "20", "1.50"]


def test_each_comparison_is_of_a_benchmark_that_runs():
    assert {each.file for each in all_benchmarks.SUMMARY} <= all_benchmarks.COMMANDS.keys()
