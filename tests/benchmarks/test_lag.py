"""The page about policy lags is a function of the records in the repository."""

import pathlib

import pytest

from benchmarks import lag
from tests.test_lag import CURVES, make_sweep

ROOT = pathlib.Path(__file__).parents[2]


def test_the_page_is_what_the_records_give():
    page = ROOT / "docs" / "lag.md"
    assert page.read_text() == lag.make_page(), "run python -m benchmarks.lag"


def test_every_task_has_a_figure_with_a_line_for_each_record():
    pytest.importorskip("matplotlib")
    figures = lag.draw_figures()
    assert sorted(figures) == sorted((ROOT / "docs" / "lag").glob("*.svg"))
    lines = [len(figure.axes[0].get_legend().get_texts()) for figure in figures.values()]
    assert lines == [len(records) for records in lag.read_records().values()]


def test_a_record_has_the_command_and_the_numbers_of_a_study(tmp_path, capsys):
    from sebulba.lag import report_lags

    sweep = make_sweep(tmp_path / "study", CURVES)
    report_lags(sweep, goal=2.0)
    lag.add(tmp_path / "study", task="Catch, easy", name="IMPALA", commit="abc", folder=tmp_path)
    (record,) = lag.read_records(tmp_path)["Catch, easy"]
    assert (record["commit"], record["batch"]) == ("abc", 320)
    assert record["command"][-4:] == ["--lags", "0,4", "--seeds", "0..3"]
    assert "--run.stop-at-return=2" in record["command"]
    page = lag.make_page(tmp_path)
    assert "| IMPALA | 320 | 4.5 [3, 6] |" in page
    assert "2 of 4" in page
